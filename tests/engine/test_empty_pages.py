"""Empty cells take no memory: what is given back, and that its contents stay the same."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import empty_pages, llama
from paddock.engine.empty_pages import Range, added, anonymous_ranges, common, release
from paddock.engine.llama import LlamaEngine
from paddock.types import Span
from tests.options import engine_options

_MIB = 1 << 20
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")


def _ranges(bits: int) -> list[Range]:
    """The runs of ones, as an operating system lists what is mapped."""
    places = [
        place
        for place in range(bits.bit_length() + 1)
        if (bits >> place & 1) != (bits >> place - 1 & 1 if place else 0)
    ]
    return list(zip(places[::2], places[1::2], strict=True))


@given(st.integers(0, 2**24), st.integers(0, 2**24))
def test_what_was_added_is_what_is_new(before: int, after: int) -> None:
    new = {place for start, end in added(_ranges(before), _ranges(after)) for place in range(start, end)}
    assert new == {place for place in range(25) if after >> place & 1 and not before >> place & 1}


@given(st.integers(0, 2**24), st.integers(0, 2**24))
def test_what_two_lists_have_in_common(some: int, others: int) -> None:
    both = {place for start, end in common(_ranges(some), _ranges(others)) for place in range(start, end)}
    assert both == {place for place in range(25) if some >> place & 1 and others >> place & 1}


@only_linux
def test_memory_that_is_not_mapped_any_more_is_skipped() -> None:
    with mmap.mmap(-1, 24 * _MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        place = ctypes.c_char.from_buffer(area)
        address = ctypes.addressof(place)
        del place
    release([(address, address + 24 * _MIB)])  # reading it would end the process


@only_linux
def test_zero_pages_are_given_back_and_others_are_not() -> None:
    before = anonymous_ranges()
    with mmap.mmap(-1, 24 * _MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for place in range(0, len(area), mmap.PAGESIZE):
            area[place] = 1
        for block in (*range(6), *range(7, 24)):
            area[block * _MIB : (block + 1) * _MIB] = bytes(_MIB)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        new = added(before, anonymous_ranges())
        assert any(start <= address and address + len(area) <= end for start, end in new)
        assert release([(address, address + len(area))]) == 23 * _MIB
        assert area[6 * _MIB] == 1
        assert area[:] == bytes(6 * _MIB) + (b"\1" + bytes(mmap.PAGESIZE - 1)) * (_MIB // mmap.PAGESIZE) + bytes(
            17 * _MIB
        )
        assert release([(address, address + 15 * _MIB)]) == 0, "a small range is not examined"


@only_linux
def test_a_loaded_model_has_empty_cells_that_take_no_memory(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(llama, "release", lambda ranges: released.append(empty_pages.release(ranges)))
    options = engine_options(n_ctx=2048 * 32, parallel=32, kv_unified=True)
    engine = LlamaEngine(tiny_models["llama"], options, lambda _: None)
    cells = engine.shape.cells * engine.shape.bytes_per_token
    assert cells >= 32 * _MIB
    assert sum(released) >= cells - 4 * _MIB
    engine.decode([Span(0, 0, [5, 6, 7])])
    engine.close()
