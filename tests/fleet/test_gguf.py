from __future__ import annotations

import io
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.catalogue.gguf import BrokenGGUF, parse_header
from paddock.fleet.catalogue.headers import read_header


def _write(path: Path) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_token_list(["a", "b", "c"])
    writer.add_float32("some.float", 0.5)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.add_tensor("output.weight", np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _write(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


def test_parse_header(tmp_path: Path) -> None:
    header = read_header(_write(tmp_path / "m.gguf"))
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.context_length"] == 128
    assert header.tensor_count == 2
    assert "tokenizer.ggml.tokens" not in header.metadata


def test_the_demo_model(demo_model: Path) -> None:
    assert read_header(demo_model).metadata["general.architecture"] == "llama"


@given(st.data())
def test_truncated_files(whole: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(4, len(whole) - 1))
    # The last bytes are padding.
    if size < len(whole) - 64:
        with pytest.raises(BrokenGGUF):
            parse_header(io.BytesIO(whole[:size]), size)


@given(st.data())
def test_flipped_bytes_never_crash_the_parser(whole: bytes, data: st.DataObject) -> None:
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, 300))] = data.draw(st.integers(0, 255))
    try:
        parse_header(io.BytesIO(changed), len(changed))
    except BrokenGGUF as error:
        assert str(error)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "too short"),
        (b"PK\3\4" + b"\0" * 40, "not with 'GGUF'"),
        (b"GGUF" + b"\x09" + b"\0" * 40, "version is 9"),
    ],
)
def test_files_that_are_not_gguf(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    with pytest.raises(BrokenGGUF, match=why):
        read_header(file)


def _header_of(tensors: int, keys: int, content: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + content


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (_header_of(1_500_000, 0, b""), "lists 1500000 tensors; the limit is 32768"),
        (_header_of(0, 1_000_000, b""), "lists 1000000 keys; the limit is 65536"),
        (
            _header_of(0, 1, struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 7_000_000)),
            "lists 7000000 strings; the limit is 4194304",
        ),
    ],
)
def test_too_many_items_are_refused(header: bytes, why: str) -> None:
    """The counts are checked before any item is read."""
    file = io.BytesIO(header + bytes(4096))
    with pytest.raises(BrokenGGUF, match=why):
        parse_header(file, 60 << 20)


def test_many_tensors() -> None:
    """More than any known model has."""
    one = struct.pack("<Q5sIQIQ", 5, b"blk.0", 1, 32, 0, 0)
    content = _header_of(16_000, 0, one * 16_000) + bytes(1024)
    header = parse_header(io.BytesIO(content), len(content))
    assert (header.tensor_count, header.parameters) == (16_000, 16_000 * 32)
