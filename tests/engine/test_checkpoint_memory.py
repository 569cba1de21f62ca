"""Windowed and recurrent layers, on tiny models: checkpoints change no answer and save prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import open_engine
from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.llama import LlamaEngine
from paddock.engine.state import SequenceStates
from paddock.errors import DecodeFailed
from paddock.scheduling import Request
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.radix_tree import common_prefix
from paddock.scheduling.snapshot_cache import snapshot_bytes
from paddock.types import CopyCheckpoint, Forget, LoadCheckpoint, Operation, SaveCheckpoint, Span
from tests.engine.harness import Harness
from tests.options import engine_options
from tests.tiers import examples, full
from tests.tiny_models import WINDOW

KINDS = ["sliding_window", "recurrent", "hybrid"]
SYSTEM = "You keep the paddock. " + " ".join(f"Horse {n} eats {n % 7} apples." for n in range(12))
QUESTIONS = [
    "Who eats most of them all?",
    "And which horse eats none?",
    "Name the horses by hunger.",
    "Then say who may have more.",
]
PROMPTS = [f"{SYSTEM} {question}" for question in QUESTIONS]


def _harness(path: Path, **options: Any) -> Harness:
    # Without rounding to half precision a step of another shape gives the same text.
    return Harness(path, flash_attn="off", cache_type_k="f32", cache_type_v="f32", **options)


def _common(request: Request, other: Request) -> int:
    return common_prefix(request.tokens[: request.prompt_size], other.tokens[: other.prompt_size])


@pytest.fixture(
    params=[
        pytest.param((kind, unified), marks=() if unified or kind == "hybrid" else full)
        for kind in KINDS
        for unified in (True, False)
    ],
    ids=str,
)
def model(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> tuple[Path, bool]:
    kind, unified = request.param
    return tiny_models[kind], unified


def test_a_cold_and_a_warm_cache_give_the_same_text(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1])
    assert (harness.engine.shape.reuse, harness.engine.info.reuse) == ("checkpoint", "checkpoint")
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(PROMPTS)]
    assert len(set(map(tuple, alone))) == len(PROMPTS)
    left = []
    for round in ("cold", "warm"):
        for id, prompt in enumerate(PROMPTS):
            request = harness.ask(id, prompt)
            harness.run()
            assert harness.answers.pop(id) == alone[id], round
            left.append(request.prompt_size - request.cached)
    assert min(left[:2]) > 200, (
        "the first two compute the whole prompt; the second saves a state where it diverges from the first"
    )
    assert max(left[2:4]) < 60
    # In the stream layout a prompt continues the stream of another, which loses the few tokens that are its own.
    assert left[4:] == [1] * 4 if model[1] else max(left[4:]) < 60
    harness.close()


def test_the_second_prompt_finds_the_system_text(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1], n_ctx=4096)
    prompts = [f"{SYSTEM} {SYSTEM[::-1]} {question}" for question in QUESTIONS[:3]]
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(prompts)]
    requests = []
    for id, prompt in enumerate(prompts):
        requests.append(harness.ask(id, prompt))
        harness.run()
    assert [harness.answers[id] for id in range(3)] == alone
    common = _common(requests[0], requests[1])
    assert [request.cached for request in requests] == [0, common // 256 * 256, common]
    harness.close()


@pytest.mark.parametrize("ram", [64 << 20, 0])
def test_the_next_turn_copies_nothing(model: tuple[Path, bool], monkeypatch: pytest.MonkeyPatch, ram: int) -> None:
    harness = _harness(model[0], kv_unified=model[1], cache_ram_bytes=ram)
    tokens = harness.engine.vocab.tokenize(PROMPTS[0], add_special=True, parse_special=True)
    follow_up = tokens + harness.alone(1, PROMPTS[0], namespace=None)
    follow_up += harness.engine.vocab.tokenize(" And then?", add_special=False, parse_special=False)
    expected = harness.alone(2, "", tokens=follow_up, namespace=None)
    first = harness.ask(1, PROMPTS[0])
    harness.run()
    applied: list[Operation] = []
    apply = harness.engine.apply

    def record(operations: Sequence[Operation]) -> Any:
        applied.extend(operations)
        return apply(operations)

    monkeypatch.setattr(harness.engine, "apply", record)
    second = harness.ask(3, "", tokens=follow_up)
    harness.step()
    assert [type(operation) for operation in applied] == [Forget], "of what follows the end"
    harness.run()
    assert second.cached == first.computed
    assert harness.answers[3] == expected
    harness.close()


def test_a_regenerated_answer_goes_back_to_the_prompt(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1], parallel=1)
    expected = harness.alone(1, PROMPTS[0], max_tokens=90, namespace=None)
    for id in (2, 3):
        request = harness.ask(id, PROMPTS[0], max_tokens=90)
        harness.run()
        assert harness.answers[id] == expected
    assert request.cached == request.prompt_size - 1
    harness.close()


def test_the_next_turn_continues_from_the_end_of_the_answer(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1])
    first = harness.ask(1, PROMPTS[0])
    harness.run()
    follow_up = first.tokens + harness.engine.vocab.tokenize(" And then?", add_special=False, parse_special=False)
    expected = harness.alone(2, "", tokens=follow_up, namespace=None)
    second = harness.ask(3, "", tokens=follow_up)
    harness.run()
    assert second.cached == first.computed
    assert harness.answers[3] == expected
    harness.close()


def test_concurrent_prompts_share_their_prefix(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1])
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(PROMPTS)]
    requests = [harness.ask(id, prompt) for id, prompt in enumerate(PROMPTS)]
    harness.run()
    assert [harness.answers[id] for id in range(len(PROMPTS))] == alone
    computed = sum(request.prompt_size - request.cached for request in requests)
    assert computed < requests[0].prompt_size + 40 * len(PROMPTS)
    harness.close()


def test_several_answers_to_one_prompt_compute_it_once(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1], cache_ram_bytes=0)
    alone = harness.alone(0, PROMPTS[0], namespace=None)
    requests = [harness.ask(id, PROMPTS[0]) for id in range(3)]
    harness.run()
    size = requests[0].prompt_size
    assert [request.cached for request in requests] == [0, size - 1, size - 1]
    assert [harness.answers[id] for id in range(3)] == [alone] * 3
    harness.close()


def test_evicted_states_are_computed_again(model: tuple[Path, bool]) -> None:
    harness = _harness(model[0], kv_unified=model[1])
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(PROMPTS)]
    size = max(len(harness.engine.vocab.tokenize(prompt, add_special=True, parse_special=True)) for prompt in PROMPTS)
    shape = harness.engine.shape
    room = 3 * snapshot_bytes(shape.snapshot, size + 12) + shape.bytes_per_token * (size + 12)
    harness.close()
    harness = _harness(model[0], kv_unified=model[1], cache_ram_bytes=room)
    for _ in range(2):
        for id, prompt in enumerate(PROMPTS):
            assert harness.alone(id, prompt) == alone[id]
            assert 0 < harness.scheduler.cache.stored_bytes <= room
            harness.scheduler.write_back()
    harness.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ram", [64 << 20, 0])
def test_a_preempted_request_continues_with_the_same_text(tiny_models: dict[str, Path], kind: str, ram: int) -> None:
    harness = _harness(tiny_models[kind], n_ctx=512, cache_ram_bytes=ram)
    prompts = [f"{id} {question * 4}" for id, question in enumerate(QUESTIONS)]
    alone = [harness.alone(id, prompt, max_tokens=150, namespace=None) for id, prompt in enumerate(prompts)]
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt, max_tokens=150)
    harness.run()
    assert harness.scheduler.preemptions > 0
    assert [harness.answers[id] for id in range(len(prompts))] == alone
    harness.close()


@pytest.fixture(scope="module", params=[(kind, unified) for kind in KINDS for unified in (True, False)], ids=str)
def crowded_harness(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Harness]:
    kind, unified = request.param
    # Shared cells for little more than one long request, and host memory for a few states.
    n_ctx = 256 if unified else 1024
    harness = _harness(
        tiny_models[kind], kv_unified=unified, n_ctx=n_ctx, cache_ram_bytes=400_000, parallel=3, chunk=48
    )
    yield harness
    harness.close()


_Letters = st.text(st.sampled_from("ab "), min_size=1, max_size=30)
_Requests = st.lists(
    st.tuples(st.integers(20, 150), _Letters, st.integers(1, 60), st.integers(0, 6), st.booleans(), st.booleans()),
    min_size=2,
    max_size=6,
)


@examples(15)
@given(base=st.text(st.sampled_from("ab "), min_size=150, max_size=150), requests=_Requests)
def test_arrivals_and_cancellations_change_no_answer(
    crowded_harness: Harness, base: str, requests: list[tuple[int, str, int, int, bool, bool]]
) -> None:
    harness = crowded_harness
    harness.answers.clear()
    prompts = [base[:cut] + tail for cut, tail, *_ in requests]
    for id, (_, _, size, steps, cancelled, shared) in enumerate(requests):
        harness.ask(id, prompts[id], max_tokens=size, namespace="" if shared else None)
        for _ in range(steps):
            harness.step()
        if cancelled:
            harness.scheduler.remove(id)
    harness.run()
    answers = {id: list(tokens) for id, tokens in harness.answers.items()}
    for id, (_, _, size, _, cancelled, _) in enumerate(requests):
        seen = answers.get(id, [])
        assert seen == harness.alone(id, prompts[id], max_tokens=size, namespace=None)[: len(seen)]
        assert cancelled or len(seen) == size
    cache, engine = harness.scheduler.cache, harness.engine
    assert isinstance(cache, CheckpointCache) and isinstance(engine, LlamaEngine)
    memory = engine._memory
    assert isinstance(memory, CheckpointMemory)
    assert cache.used == cache.idle_cells
    assert memory._checkpoints.keys() == cache._checkpoints.keys()
    # A window may lack its oldest token, which no later one sees.
    spare = engine.shape.snapshot.per_window_token * len(memory._checkpoints)
    held = memory.held_bytes
    expected = cache.stored_bytes if memory.has_keys else cache.stored_bytes - cache.stored
    assert expected - spare <= held <= expected <= 400_000


def test_answers_to_one_prompt_do_not_run_out_of_windows(tiny_models: dict[str, Path]) -> None:
    """They share the prompt, and the windowed layers have cells for little more than one window per sequence."""
    harness = _harness(tiny_models["sliding_window"], n_ctx=2048, n_ubatch=32, chunk=32)
    alone = harness.alone(0, PROMPTS[0], max_tokens=300, namespace=None)
    for id in range(4):
        harness.ask(id, PROMPTS[0], max_tokens=300)
    harness.run()
    assert [harness.answers[id] for id in range(4)] == [alone] * 4
    assert harness.scheduler.preemptions == 0
    harness.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unified", [True, False])
def test_deterministic_requests_reuse_only_exact_copies(tiny_models: dict[str, Path], kind: str, unified: bool) -> None:
    harness = Harness(tiny_models[kind], kv_unified=unified)
    options: dict[str, Any] = {"deterministic": True, "temperature": 1.0, "max_tokens": 24}
    cold = [harness.alone(id, prompt, namespace=None, **options) for id, prompt in enumerate(PROMPTS)]
    requests = [harness.ask(id, prompt, **options) for id, prompt in enumerate(PROMPTS)]
    harness.run()
    assert [harness.answers.pop(id) for id in range(len(PROMPTS))] == cold, "together"
    requests += [harness.ask(id, prompt, **options) for id, prompt in enumerate(PROMPTS)]
    harness.run()
    assert [harness.answers[id] for id in range(len(PROMPTS))] == cold, "warm"
    # A copy of a windowed state is in other cells than the original, so the last bits differ.
    # In unified cells they run one after another, and the second saves a state where it diverges from the first.
    together, warm = requests[2 if unified else 1 : 4], requests[4:]
    if kind == "sliding_window":
        assert not any(request.cached for request in requests)
    else:
        assert all(request.cached == _common(request, requests[0]) // 128 * 128 > 0 for request in together)
        assert all(request.cached == (request.prompt_size - 1) // 128 * 128 for request in warm)
    harness.close()


def test_a_checkpoint_has_the_predicted_size(model: tuple[Path, bool]) -> None:
    engine = LlamaEngine(model[0], engine_options(n_ctx=1024, parallel=2, kv_unified=model[1]), lambda _: None)
    memory = engine._memory
    assert isinstance(memory, CheckpointMemory)
    at = 0
    for end in (1, WINDOW - 1, WINDOW, WINDOW + 1, 200):
        engine.decode([Span(0, at, [5] * (end - at))])
        engine.apply([SaveCheckpoint(0, end, end)])
        assert len(memory._checkpoints[end]) == snapshot_bytes(engine.shape.snapshot, end)
        at = end
    engine.close()


@pytest.mark.parametrize(
    "operation", [SaveCheckpoint(0, 5, 1), LoadCheckpoint(0, 5, 7), CopyCheckpoint(0, 1, 5)], ids=str
)
@pytest.mark.parametrize("fake", [False, True])
def test_a_checkpoint_of_other_tokens_is_refused(
    tiny_models: dict[str, Path], operation: Operation, fake: bool
) -> None:
    path = "fake:checkpoint=1" if fake else str(tiny_models["hybrid"])
    engine = open_engine(path, engine_options(n_ctx=512, parallel=2), lambda _: None)
    engine.decode([Span(0, 0, [5] * 9)])
    engine.apply([SaveCheckpoint(0, 9, 7)])
    with pytest.raises(AssertionError if fake else DecodeFailed):
        engine.apply([operation])
    engine.close()


def test_a_model_whose_copies_differ_reuses_nothing(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequenceStates, "_write_state", lambda *_: False)
    harness = _harness(tiny_models["hybrid"])
    assert harness.engine.shape.reuse == "none"
    first = harness.alone(1, PROMPTS[0], namespace=None)
    requests = [harness.ask(id, PROMPTS[0]) for id in (2, 3)]
    harness.run()
    assert [request.cached for request in requests] == [0, 0]
    assert [harness.answers[id] for id in (2, 3)] == [first, first]
    harness.close()


@pytest.mark.parametrize("unified", [True, pytest.param(False, marks=full)])
def test_a_real_model_with_windows(real_models: Path, unified: bool) -> None:
    """Gemma 3 270M, of which CONTRIBUTING.md says how to get it. Its window is shorter than the prompt."""
    path = real_models / "gemma-3-270m.Q4_K_M.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in PADDOCK_TEST_MODELS")
    harness = _harness(path, n_ctx=4096, parallel=2, kv_unified=unified, n_threads=2, chunk=128)
    assert harness.engine.shape.reuse == "checkpoint"
    system = " ".join(f"Horse {n} eats {n % 7} apples." for n in range(60))
    prompts = [f"{system} Horse {n}" for n in (3, 4)]
    cold = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(prompts)]
    requests = []
    for id, prompt in enumerate(prompts):
        requests.append(harness.ask(id, prompt))
        harness.run()
    assert [harness.answers[id] for id in range(2)] == cold
    assert requests[1].cached >= 512
    again = harness.ask(2, prompts[0])
    harness.run()
    assert again.cached == again.prompt_size - 1
    assert harness.answers[2] == cold[0]
    harness.close()
