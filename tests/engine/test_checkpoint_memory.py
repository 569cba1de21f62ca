"""Windowed and recurrent layers, on tiny models: checkpoints change no answer and save prefill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paddock.engine import open_engine
from paddock.engine.checkpoint_memory import CheckpointMemory, deferrable_forks
from paddock.engine.llama import LlamaEngine
from paddock.errors import DecodeFailed
from paddock.types import CopyCheckpoint, Forget, Fork, LoadCheckpoint, Operation, Restore, SaveCheckpoint, Span
from tests.engine.harness import Harness
from tests.engine.stateful import KINDS, PROMPTS, QUESTIONS, SYSTEM, common_prompt, precise_harness
from tests.options import engine_options
from tests.tiers import full
from tests.tiny_models import WINDOW


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


def test_the_second_prompt_finds_the_system_text(model: tuple[Path, bool]) -> None:
    harness = precise_harness(model[0], kv_unified=model[1], n_ctx=4096)
    prompts = [f"{SYSTEM} {SYSTEM[::-1]} {question}" for question in QUESTIONS[:3]]
    alone = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(prompts)]
    requests = []
    for id, prompt in enumerate(prompts):
        requests.append(harness.ask(id, prompt))
        harness.run()
    assert [harness.answers[id] for id in range(3)] == alone
    common = common_prompt(requests[0], requests[1])
    assert [request.cached for request in requests] == [0, common // 256 * 256, common]
    harness.close()


@pytest.mark.parametrize("ram", [64 << 20, 0])
def test_the_next_turn_copies_nothing(model: tuple[Path, bool], monkeypatch: pytest.MonkeyPatch, ram: int) -> None:
    harness = precise_harness(model[0], kv_unified=model[1], cache_ram_bytes=ram)
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
    harness = precise_harness(model[0], kv_unified=model[1], parallel=1)
    expected = harness.alone(1, PROMPTS[0], max_tokens=90, namespace=None)
    for id in (2, 3):
        request = harness.ask(id, PROMPTS[0], max_tokens=90)
        harness.run()
        assert harness.answers[id] == expected
    assert request.cached == request.prompt_size - 1
    harness.close()


def test_a_checkpoint_has_the_predicted_size(model: tuple[Path, bool]) -> None:
    engine = LlamaEngine(model[0], engine_options(n_ctx=1024, parallel=2, kv_unified=model[1]), lambda _: None)
    memory = engine._memory
    assert isinstance(memory, CheckpointMemory)
    at = 0
    for end in (1, WINDOW - 1, WINDOW, WINDOW + 1, 200):
        engine.decode([Span(0, at, [5] * (end - at))])
        engine.apply([SaveCheckpoint(0, end, end)])
        assert len(memory._checkpoints[end]) == engine.shape.snapshot.bytes(end)
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


@pytest.mark.parametrize(
    ("later", "forks"),
    [
        ([], {(0, 1)}),
        ([LoadCheckpoint(1, 9, 7), Forget(0)], {(0, 1)}),
        ([CopyCheckpoint(0, 1, 9), Fork(1, 2, 9), CopyCheckpoint(1, 2, 9)], {(0, 1), (1, 2)}),
        ([LoadCheckpoint(1, 5, 7)], set()),
        ([Forget(1, 5), LoadCheckpoint(1, 5, 7)], set()),
        ([LoadCheckpoint(1, 9, 7), LoadCheckpoint(0, 4, 8)], set()),
        ([Restore(0, 0, [])], set()),
        ([SaveCheckpoint(1, 9, 8)], set()),
        ([Fork(1, 2, 5)], {(1, 2)}),
        ([Fork(2, 0, 5)], {(2, 0)}),
    ],
    ids=str,
)
def test_a_fork_is_made_later_only_if_nothing_else_is_written(
    later: list[Operation], forks: set[tuple[int, int]]
) -> None:
    assert deferrable_forks([Fork(0, 1, 9), *later]) == forks


@pytest.fixture
def gemma(real_models: Path) -> Path:
    """Gemma 3 270M, which `tools/gemma.py` downloads. Its window is shorter than the prompts."""
    path = real_models / "gemma-3-270m.Q4_K_M.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in PADDOCK_TEST_MODELS")
    return path


_HORSES = " ".join(f"Horse {n} eats {n % 7} apples." for n in range(60))


@pytest.mark.parametrize("unified", [True, pytest.param(False, marks=full)])
def test_a_real_model_with_windows(gemma: Path, unified: bool) -> None:
    harness = precise_harness(gemma, n_ctx=4096, parallel=2, kv_unified=unified, chunk=128)
    assert harness.engine.shape.reuse == "checkpoint"
    prompts = [f"{_HORSES} Horse {n}" for n in (3, 4)]
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


@full
@pytest.mark.parametrize("unified", [True, False])
def test_a_real_model_with_windows_is_deterministic(gemma: Path, unified: bool) -> None:
    """Cold and warm, alone and together. With random choices: a difference in the last bits shows in some token."""
    harness = Harness(gemma, n_ctx=4096, parallel=2, kv_unified=unified, chunk=256, deterministic=True)
    exact: dict[str, Any] = {"deterministic": True, "temperature": 1.0}
    prompts = [f"{_HORSES} Horse {n}" for n in (3, 4)]
    cold = [harness.alone(id, prompt, namespace=None, **exact) for id, prompt in enumerate(prompts)]
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt, **exact)
    harness.run()
    assert [harness.answers.pop(id) for id in range(2)] == cold
    assert harness.alone(0, prompts[0], **exact) == cold[0]
    harness.close()
