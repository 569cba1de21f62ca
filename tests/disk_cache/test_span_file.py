"""The parser of headers: any bytes give an entry or `UnusableFile`."""

from __future__ import annotations

import hashlib
import os
import struct
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddock.disk_cache.span_file import (
    MAX_DESCRIPTION,
    DamagedFile,
    Header,
    UnusableFile,
    encode_header,
    parse_header,
    read_header,
)
from tests.disk_cache.spans import chain
from tests.tiers import examples

VALID = encode_header(chain("tenant")[1], 1000, 7)


def _parse(data: bytes, size: int) -> Header | None:
    try:
        return parse_header(data, size)
    except UnusableFile as error:
        assert str(error)
        return None


def _sealed(description: bytes, payload_size: int = 0) -> bytes:
    """A header with the right checksum."""
    head = struct.pack("<8sIIQI", b"PADDSPAN", 1, len(description), payload_size, 0) + description
    head += hashlib.sha256(head).digest()
    return head.ljust(-(-len(head) // 64) * 64, b"\0")


def test_a_header_is_read_back() -> None:
    header = parse_header(VALID, len(VALID) + 1000)
    assert header.entry.namespace == "tenant" and header.entry.tokens == list(range(10, 20))
    assert (header.payload_start, header.payload_crc) == (len(VALID), 7)


@examples(500)
@given(st.binary(max_size=300), st.integers(0, 1 << 40))
def test_random_bytes(data: bytes, size: int) -> None:
    _parse(data, size)
    _parse(VALID[:8] + data, size)
    _parse(VALID[:12] + data, size)


@examples(500)
@given(st.integers(0, len(VALID) - 1), st.binary(min_size=1, max_size=40), st.integers(0, 5000))
def test_changed_bytes(at: int, data: bytes, size: int) -> None:
    changed = VALID[:at] + data + VALID[at + len(data) :]
    header = _parse(changed, size)
    if header is not None:
        assert header.entry.tokens == list(range(10, 20)) and header.payload_start == len(VALID)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@examples(300)
@given(_values.map(msgspec.msgpack.encode) | st.binary(max_size=100))
def test_a_description_with_the_right_checksum(description: bytes) -> None:
    data = _sealed(description)
    _parse(data, len(data))


@pytest.mark.parametrize("description", [b"\xdd\xff\xff\xff\xff", b"\x96\xc6\xff\xff\xff\xff"], ids=["array", "string"])
def test_four_billion_elements_that_are_not_there(description: bytes) -> None:
    data = _sealed(description)
    tracemalloc.start()
    try:
        assert _parse(data, len(data)) is None
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@examples(300)
@given(
    st.binary(max_size=4), st.integers(-5, 2**33), st.integers(-5, 2**33),
    st.sampled_from([b"", bytes(31), bytes(32)]), st.binary(max_size=12),
)  # fmt: skip
@example(b"\xff", 0, 1, bytes(32), bytes(4))
@example(b"", 0, 1, bytes(32), bytes(4))
def test_a_description_that_contradicts_itself(ns: bytes, start: int, end: int, digest: bytes, tokens: bytes) -> None:
    data = _sealed(msgspec.msgpack.encode((ns, start, end, digest, bytes(32), tokens)))
    if (header := _parse(data, len(data))) is not None:
        assert 0 <= header.entry.start < header.entry.end and len(header.entry) * 4 == len(tokens)


def test_a_length_in_a_header_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for length in (MAX_DESCRIPTION + 1, 2**32 - 1):
        path.write_bytes(struct.pack("<8sIIQI", b"PADDSPAN", 1, length, 0, 0))
        os.truncate(path, 1 << 40)  # a sparse file
        with path.open("rb") as file, pytest.raises(DamagedFile, match="its header has"):
            tracemalloc.start()
            try:
                read_header(file.fileno(), 1 << 40)
            finally:
                assert tracemalloc.get_traced_memory()[1] < 64 << 20
                tracemalloc.stop()
