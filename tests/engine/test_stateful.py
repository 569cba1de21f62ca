"""Windowed and recurrent layers, on tiny models. Checkpoints and whole copies change no answer and save prefill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.llama import LlamaEngine
from paddock.engine.snapshot_memory import SnapshotMemory
from paddock.engine.state import SequenceStates
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.snapshot_cache import SnapshotCache
from tests.engine.harness import Harness
from tests.engine.stateful import KINDS, PROMPTS, QUESTIONS, common_prompt, precise_harness, without_checkpoints
from tests.tiers import examples, full

REUSE = ["checkpoint", "snapshot"]


class Model(NamedTuple):
    path: Path
    unified: bool
    reuse: str


@pytest.fixture(scope="module", params=REUSE)
def reuse(request: pytest.FixtureRequest) -> Iterator[str]:
    reuse: str = request.param
    if reuse == "checkpoint":
        yield reuse
        return
    with without_checkpoints():
        yield reuse


def _is_fast(reuse: str, kind: str, *, unified: bool) -> bool:
    return (unified or kind == "hybrid") if reuse == "checkpoint" else (unified and kind == "hybrid")


@pytest.fixture(
    params=[
        pytest.param((kind, unified, reuse), marks=() if _is_fast(reuse, kind, unified=unified) else full)
        for reuse in REUSE
        for kind in KINDS
        for unified in (True, False)
    ],
    ids=str,
)
def model(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Model]:
    kind, unified, reuse = request.param
    if reuse == "checkpoint":
        yield Model(tiny_models[kind], unified, reuse)
        return
    with without_checkpoints():
        yield Model(tiny_models[kind], unified, reuse)


def test_a_cold_and_a_warm_cache_give_the_same_text(model: Model) -> None:
    harness = precise_harness(model.path, kv_unified=model.unified)
    assert (harness.engine.shape.reuse, harness.engine.info.reuse) == (model.reuse, model.reuse)
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
    if model.unified or model.reuse == "snapshot":
        assert left[4:] == [1] * 4
    else:
        # With checkpoints a prompt continues the stream of another, which loses the few tokens that are its own.
        assert max(left[4:]) < 60
    harness.close()


def test_the_next_turn_continues_from_the_end_of_the_answer(model: Model) -> None:
    harness = precise_harness(model.path, kv_unified=model.unified)
    first = harness.ask(1, PROMPTS[0])
    harness.run()
    follow_up = first.tokens + harness.engine.vocab.tokenize(" And then?", add_special=False, parse_special=False)
    expected = harness.alone(2, "", tokens=follow_up, namespace=None)
    second = harness.ask(3, "", tokens=follow_up)
    harness.run()
    assert second.cached == first.computed
    assert harness.answers[3] == expected
    harness.close()


def test_concurrent_prompts_share_their_prefix(model: Model) -> None:
    harness = precise_harness(model.path, kv_unified=model.unified)
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(PROMPTS)]
    requests = [harness.ask(id, prompt) for id, prompt in enumerate(PROMPTS)]
    harness.run()
    assert [harness.answers[id] for id in range(len(PROMPTS))] == alone
    computed = sum(request.prompt_size - request.cached for request in requests)
    assert computed < requests[0].prompt_size + 40 * len(PROMPTS)
    harness.close()


def test_several_answers_to_one_prompt_compute_it_once(model: Model) -> None:
    harness = precise_harness(model.path, kv_unified=model.unified, cache_ram_bytes=0)
    alone = harness.alone(0, PROMPTS[0], namespace=None)
    requests = [harness.ask(id, PROMPTS[0]) for id in range(3)]
    harness.run()
    size = requests[0].prompt_size
    assert [request.cached for request in requests] == [0, size - 1, size - 1]
    assert [harness.answers[id] for id in range(3)] == [alone] * 3
    harness.close()


@full
def test_evicted_states_are_computed_again(model: Model) -> None:
    harness = precise_harness(model.path, kv_unified=model.unified)
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(PROMPTS)]
    size = max(len(harness.engine.vocab.tokenize(prompt, add_special=True, parse_special=True)) for prompt in PROMPTS)
    shape, tokens = harness.engine.shape, size + 12
    state = shape.snapshot.bytes(tokens)
    room = 3 * state + shape.bytes_per_token * tokens if model.reuse == "checkpoint" else 2 * state
    harness.close()
    harness = precise_harness(model.path, kv_unified=model.unified, cache_ram_bytes=room)
    for _ in range(2):
        for id, prompt in enumerate(PROMPTS):
            assert harness.alone(id, prompt) == alone[id]
            assert 0 < harness.scheduler.cache.stored_bytes <= room
            harness.scheduler.write_back()
    assert harness.scheduler.cache.evicted > 0 or model.reuse == "checkpoint"
    harness.close()


@full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ram", [64 << 20, 0])
@pytest.mark.usefixtures("reuse")
def test_a_preempted_request_continues_with_the_same_text(tiny_models: dict[str, Path], kind: str, ram: int) -> None:
    harness = precise_harness(tiny_models[kind], n_ctx=512, cache_ram_bytes=ram)
    prompts = [f"{id} {question * 4}" for id, question in enumerate(QUESTIONS)]
    alone = [harness.alone(id, prompt, max_tokens=150, namespace=None) for id, prompt in enumerate(prompts)]
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt, max_tokens=150)
    harness.run()
    assert harness.scheduler.preemptions > 0
    assert [harness.answers[id] for id in range(len(prompts))] == alone
    harness.close()


@pytest.fixture(scope="module", params=[(kind, unified) for kind in KINDS for unified in (True, False)], ids=str)
def crowded_harness(request: pytest.FixtureRequest, reuse: str, tiny_models: dict[str, Path]) -> Iterator[Harness]:
    kind, unified = request.param
    # Shared cells for little more than one long request, and host memory for a few states.
    n_ctx = 256 if unified else 1024
    harness = precise_harness(
        tiny_models[kind], kv_unified=unified, n_ctx=n_ctx, cache_ram_bytes=400_000, parallel=3, chunk=48
    )
    assert harness.engine.shape.reuse == reuse
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
    _check_accounts(harness, bound=400_000)


def _check_accounts(harness: Harness, *, bound: int) -> None:
    cache, engine = harness.scheduler.cache, harness.engine
    assert isinstance(engine, LlamaEngine)
    memory = engine._memory
    if isinstance(memory, SnapshotMemory):
        assert isinstance(cache, SnapshotCache)
        assert cache.used == 0
        assert sum(map(len, memory._snapshots.values())) == cache.stored_bytes <= bound
        return
    assert isinstance(cache, CheckpointCache) and isinstance(memory, CheckpointMemory)
    assert cache.used == cache.idle_cells
    assert memory._checkpoints.keys() == cache._checkpoints.keys()
    # A window may lack its oldest token, which no later one sees.
    spare = engine.shape.snapshot.per_window_token * len(memory._checkpoints)
    expected = cache.stored_bytes if memory.has_keys else cache.stored_bytes - cache.stored
    assert expected - spare <= memory.held_bytes <= expected <= bound


@full
@pytest.mark.usefixtures("reuse")
def test_answers_to_one_prompt_do_not_run_out_of_windows(tiny_models: dict[str, Path]) -> None:
    """They share the prompt, and the windowed layers have cells for little more than one window per sequence."""
    harness = precise_harness(tiny_models["sliding_window"], n_ctx=2048, n_ubatch=32, chunk=32)
    alone = harness.alone(0, PROMPTS[0], max_tokens=300, namespace=None)
    for id in range(4):
        harness.ask(id, PROMPTS[0], max_tokens=300)
    harness.run()
    assert [harness.answers[id] for id in range(4)] == [alone] * 4
    assert harness.scheduler.preemptions == 0
    harness.close()


@full
@pytest.mark.usefixtures("reuse")
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
        assert all(request.cached == common_prompt(request, requests[0]) // 128 * 128 > 0 for request in together)
        assert all(request.cached == (request.prompt_size - 1) // 128 * 128 for request in warm)
    harness.close()


@pytest.mark.usefixtures("reuse")
def test_a_model_whose_copies_differ_reuses_nothing(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequenceStates, "_write_state", lambda *_: False)
    harness = precise_harness(tiny_models["hybrid"])
    assert harness.engine.shape.reuse == "none"
    first = harness.alone(1, PROMPTS[0], namespace=None)
    requests = [harness.ask(id, PROMPTS[0]) for id in (2, 3)]
    harness.run()
    assert [request.cached for request in requests] == [0, 0]
    assert [harness.answers[id] for id in (2, 3)] == [first, first]
    harness.close()
