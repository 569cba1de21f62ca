from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
import pytest

from paddock.fleet.catalogue import headers
from paddock.fleet.catalogue.gguf import BrokenGGUF, Header, parse_header
from paddock.fleet.catalogue.headers import read_header


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paddock" / "headers"


def _write(path: Path, *, tokens: int = 20_000, context: int = 128) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_float32("some.float", 0.5)
    writer.add_array("llama.attention.head_count", [8, 4])
    writer.add_token_list([f"t{number}" for number in range(tokens)])
    writer.add_tensor("output.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _in_another_process(path: Path, monkeypatch: pytest.MonkeyPatch, *, parsed: bool) -> Header:
    """Read a header with an empty cache in memory. `parsed`: whether the file itself must be parsed."""
    headers._read.cache_clear()
    parses: list[int] = []

    def parse(file: BinaryIO, size: int) -> Header:
        parses.append(size)
        return parse_header(file, size)

    with monkeypatch.context() as patch:
        patch.setattr(headers, "parse_header", parse)
        header = read_header(path)
    assert bool(parses) == parsed
    return header


def test_processes_share_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(tmp_path / "m.gguf")
    first = _in_another_process(file, monkeypatch, parsed=True)
    assert _in_another_process(file, monkeypatch, parsed=False) == first


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(tmp_path / "m.gguf")
    read_header(file)
    _write(file, context=256)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    header = _in_another_process(file, monkeypatch, parsed=True)
    assert header.metadata["llama.context_length"] == 256


@pytest.mark.parametrize("damage", [b"", b"\x00", b"nonsense"])
def test_a_damaged_entry_is_ignored(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    file = _write(tmp_path / "m.gguf")
    first = read_header(file)
    (entry,) = cache.iterdir()
    entry.write_bytes(damage)
    assert _in_another_process(file, monkeypatch, parsed=True) == first


def test_a_read_only_cache_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert read_header(_write(tmp_path / "m.gguf")).tensor_count == 1


def test_small_headers_and_broken_files_are_not_cached(tmp_path: Path, cache: Path) -> None:
    read_header(_write(tmp_path / "small.gguf", tokens=3))
    whole = _write(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:-200])
    with pytest.raises(BrokenGGUF):
        read_header(cut)
    assert not cache.exists()
