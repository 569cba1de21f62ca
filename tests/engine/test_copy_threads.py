"""Copies on several threads."""

from __future__ import annotations

import struct
import threading
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.copy_threads import CopyThreads
from paddock.engine.state import StateFormat

_LARGE = 64 << 20


@given(st.integers(1, 9), st.integers(0, 40), st.sampled_from([0, _LARGE]))
def test_every_copy_is_made_once(threads: int, copies: int, size: int) -> None:
    made: list[int] = []
    CopyThreads(threads).run([partial(made.append, number) for number in range(copies)], size)
    assert sorted(made) == list(range(copies))


def test_large_copies_are_made_by_several_threads_and_small_ones_by_the_caller() -> None:
    together = threading.Barrier(3, timeout=10)
    CopyThreads(3).run([together.wait] * 3, _LARGE)
    names: list[str] = []
    CopyThreads(3).run([lambda: names.append(threading.current_thread().name)] * 3, 1000)
    assert set(names) == {threading.current_thread().name}


def test_a_failed_copy_is_reported_when_no_other_runs_any_more() -> None:
    done = threading.Event()

    def fail() -> None:
        raise MemoryError("no page")

    def finish() -> None:
        done.wait(0.05)
        done.set()

    for copies in ([fail, finish], [finish, fail]):
        done.clear()
        with pytest.raises(MemoryError):
            CopyThreads(2).run(copies, _LARGE)
        assert done.is_set()


@pytest.mark.parametrize("transposed", [False, True])
def test_spans_are_the_same_with_any_number_of_threads(transposed: bool) -> None:
    """Keys and values that are large enough for several threads, cut and joined again."""
    tokens, layers, row = 96, 3, 16384
    blob = _blob(np.arange(4), layers, row, transposed=transposed)
    formats = [StateFormat.learn(blob, 4, CopyThreads(threads)) for threads in (1, 4)]
    whole = np.frombuffer(_blob(np.arange(tokens), layers, row, transposed=transposed), np.uint8)
    states: list[npt.NDArray[np.uint8]] = []
    for format in formats:
        spans = [format.empty(60), format.empty(tokens - 60)]
        format.copy(whole, 0, 60, spans[0])
        format.copy(whole, 60, tokens, spans[1])
        state = np.empty(format.size(tokens), np.uint8)
        format.join([(spans[0], 0, 60), (spans[1], 0, tokens - 60)], 0, state)
        states.append(state)
    assert formats[1].bytes_per_token * 60 > 2 << 20, "several threads copy"
    for state in states:
        np.testing.assert_array_equal(state, whole)


def _blob(positions: npt.NDArray[np.int64], layers: int, row: int, *, transposed: bool) -> bytes:
    """A state as libllama writes it: a header, the cells, and for each layer the keys, then the values."""
    count, rng = len(positions), np.random.default_rng(5)
    cells = b"".join(np.array([position, 1, 0], np.int32).tobytes() for position in positions)
    parts = [
        np.array([7, 0, 1, count], np.uint32).tobytes(),
        cells,
        np.array([transposed, layers], np.uint32).tobytes(),
    ]
    for kind in ("keys", "values"):
        for _ in range(layers):
            is_transposed = kind == "values" and transposed
            header = struct.pack("<iII", 1, 2, row // 2) if is_transposed else struct.pack("<iQ", 1, row)
            parts += [header, rng.integers(0, 256, count * row, np.uint8).tobytes()]
    return b"".join(parts)
