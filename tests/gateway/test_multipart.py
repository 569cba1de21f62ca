from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest
from paddock.gateway.http.multipart import MultipartParser, PartBegin, PartData, boundary_of
from tests.tiers import examples

_BOUNDARY = b"xYz"


def _parse(body: bytes, sizes: list[int]) -> tuple[list[tuple[str, str | None, bytes]], bool]:
    """The parts of a body that arrives in pieces of these sizes."""
    parser = MultipartParser(_BOUNDARY)
    parts: list[tuple[str, str | None, bytes]] = []
    at = 0
    for size in [*sizes, len(body)]:
        for event in parser.feed(body[at : at + size]):
            if isinstance(event, PartBegin):
                parts.append((event.name, event.filename, b""))
            elif isinstance(event, PartData):
                name, filename, data = parts[-1]
                parts[-1] = (name, filename, data + event.data)
        at += size
    return parts, parser.is_complete


def _form(parts: list[bytes]) -> bytes:
    head = b'--xYz\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\n\r\n'
    return b"".join(head + part + b"\r\n" for part in parts) + b"--xYz--\r\n"


_NEAR = st.sampled_from([b"\r\n--xY", b"\r\n--", b"\r", b"\r\n", b"--xYz", b"--", b"\r\n\r\n", b"data", b"\n"])


@examples(1000)
@given(
    parts=st.lists(st.lists(_NEAR | st.binary(max_size=5), max_size=8).map(b"".join), max_size=3),
    sizes=st.lists(st.integers(1, 9), max_size=80),
)
def test_parts_are_the_same_in_any_pieces(parts: list[bytes], sizes: list[int]) -> None:
    parts = [part for part in parts if b"\r\n--xYz" not in b"\r\n" + part]
    assert _parse(_form(parts), sizes) == ([("file", 'a "b".jsonl', part) for part in parts], True)


@given(cut=st.integers(0, 200))
def test_a_form_that_is_cut_is_not_complete(cut: int) -> None:
    body = _form([b"some data", b"more"])
    cut = min(cut, len(body) - 5)
    assert not _parse(body[:cut], [])[1]


@given(data=st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        _parse(b"--xYz\r\n" + data, [1] * 50)
    except InvalidRequest:
        pass


def test_little_is_kept_in_memory() -> None:
    parser = MultipartParser(_BOUNDARY)
    list(parser.feed(_form([b""]).split(b"\r\n\r\n")[0] + b"\r\n\r\n"))
    for _ in range(100):
        list(parser.feed(b"x" * 100_000))
        assert len(parser._buffer) < 100


@pytest.mark.parametrize(
    "header",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=x"],
)
def test_other_bodies_are_refused(header: str) -> None:
    with pytest.raises(InvalidRequest, match="multipart/form-data"):
        boundary_of(header)


def test_boundaries() -> None:
    assert boundary_of('multipart/form-data; charset=utf-8; boundary="a b"') == b"a b"
    assert boundary_of("Multipart/Form-Data;boundary=----x") == b"----x"


def test_a_part_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no name"):
        _parse(b"--xYz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xYz--", [])
