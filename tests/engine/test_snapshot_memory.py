"""Memory that cannot be cut, on tiny models: copies of whole states change no answer and save prefill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.engine import open_engine
from paddock.engine.llama import LlamaEngine
from paddock.engine.snapshot_memory import SnapshotMemory
from paddock.engine.state import StateFormat, UnknownFormat
from paddock.errors import DecodeFailed
from paddock.types import Forget, Fork, Operation, Piece, Restore, Save, Span
from tests.engine.stateful import KINDS, PROMPTS, precise_harness, without_checkpoints
from tests.options import engine_options
from tests.tiers import full
from tests.tiny_models import WINDOW


@pytest.fixture(scope="module", autouse=True)
def _no_checkpoints() -> Iterator[None]:
    with without_checkpoints():
        yield


@pytest.fixture(
    params=[
        pytest.param((kind, unified), marks=() if unified and kind == "hybrid" else full)
        for kind in KINDS
        for unified in (True, False)
    ],
    ids=str,
)
def model(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> tuple[Path, bool]:
    kind, unified = request.param
    return tiny_models[kind], unified


def test_a_snapshot_has_the_predicted_size(model: tuple[Path, bool]) -> None:
    engine = LlamaEngine(model[0], engine_options(n_ctx=1024, parallel=2, kv_unified=model[1]), lambda _: None)
    memory = engine._memory
    assert isinstance(memory, SnapshotMemory)
    at = 0
    for end in (1, WINDOW - 1, WINDOW, WINDOW + 1, 200):
        engine.decode([Span(0, at, [5] * (end - at))])
        engine.apply([Save(0, 0, end, end)])
        assert len(memory._snapshots[end]) == engine.shape.snapshot.bytes(end)
        view = engine.view_pieces([Piece(end, 0, end)])
        packed = b"".join(engine.pack(view))
        assert len(packed) == engine.packed_size(view)
        assert bytes(engine.unpack(memoryview(packed), end)) == packed
        with pytest.raises(ValueError, match=f"{len(packed) - 1} bytes for {end} tokens"):
            engine.unpack(memoryview(packed)[1:], end)
        at = end
    engine.close()


@pytest.mark.parametrize(
    "operation",
    [Fork(0, 1, 5), Save(0, 0, 5, 1), Save(0, 2, 9, 1), Forget(0, 5), Restore(1, 5, [Piece(7, 0, 9)])],
    ids=lambda operation: type(operation).__name__,
)
@pytest.mark.parametrize("fake", [False, True])
def test_a_part_of_a_state_is_refused(tiny_models: dict[str, Path], operation: Operation, fake: bool) -> None:
    path = "fake:whole=1" if fake else str(tiny_models["hybrid"])
    engine = open_engine(path, engine_options(n_ctx=512, parallel=2), lambda _: None)
    engine.decode([Span(0, 0, [5] * 9)])
    engine.apply([Save(0, 0, 9, 7)])
    with pytest.raises(AssertionError if fake else DecodeFailed):
        engine.apply([operation])
    engine.close()


def test_attention_with_an_unknown_state_format_is_copied_as_a_whole(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(*_: object) -> StateFormat:
        raise UnknownFormat("a later libllama")

    monkeypatch.setattr(StateFormat, "learn", learn)
    harness = precise_harness(tiny_models["llama"])
    assert (harness.engine.shape.reuse, harness.engine.info.state_format) == ("snapshot", "whole")
    first = harness.alone(1, PROMPTS[0], namespace=None)
    assert [harness.alone(id, PROMPTS[0]) for id in (2, 3)] == [first, first]
    again = harness.ask(4, PROMPTS[0])
    harness.run()
    assert again.cached == again.prompt_size - 1
    harness.close()
