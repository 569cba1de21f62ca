"""Which libllama it is, by its files."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.libraries import build_id, compiler, identity, sha256_by_file
from paddock.libraries.elf import Elf, read_elf
from paddock.libraries.identity import library_files, sha256

_HEADER, _SEGMENT, _SECTION = (
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQQQ"),
    struct.Struct("<IIQQQQIIQQ"),
)


def elf(build_id: bytes = b"", compiler: bytes = b"") -> bytes:
    """A 64-bit ELF file for x86-64 with these notes and nothing else."""
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id.ljust(-(-len(build_id) // 4) * 4, b"\0")
    other = struct.pack("<III", 4, 3, 1) + b"ABI\0" + b"xyz\0"
    notes, names = other + (note if build_id else b""), b"\0.comment\0.names\0"
    comment = compiler + b"\0another compiler\0" if compiler else b""
    at = _HEADER.size + _SEGMENT.size
    places = [at, at + len(notes), at + len(notes) + len(names)]
    sections = [
        _SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        _SECTION.pack(1, 1, 0, 0, places[2], len(comment), 0, 0, 1, 0),
        _SECTION.pack(10, 3, 0, 0, places[1], len(names), 0, 0, 1, 0),
    ]
    table = places[2] + len(comment)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (_HEADER.size, _SEGMENT.size, 1, _SECTION.size, len(sections), 2)
    header = _HEADER.pack(ident, 3, 62, 1, 0, _HEADER.size, table, 0, *sizes)
    segment = _SEGMENT.pack(4, 4, places[0], 0, 0, len(notes), len(notes), 4)
    return header + segment + notes + names + comment + b"".join(sections)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which digests are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "_known", {})
    return tmp_path / "cache" / "paddock" / "digests.json"


def test_an_elf_file(tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    path.write_bytes(elf(bytes(range(20)), b"GCC: 12.2.0"))
    assert read_elf(path) == Elf("x86_64", bytes(range(20)).hex(), "GCC: 12.2.0", path.stat().st_size)
    assert compiler(path) == "GCC: 12.2.0"
    path.write_bytes(elf())
    assert read_elf(path) == Elf("x86_64", size=path.stat().st_size)
    path.write_bytes(elf()[:-1])
    assert read_elf(path) == Elf("x86_64", size=path.stat().st_size + 1)
    path.write_bytes(b"\x7fELF\x01\x02\x01" + bytes(11) + b"\x00\x28" + bytes(32))
    assert read_elf(path) == Elf("arm"), "32 bits, big-endian"
    path.write_bytes(b"a text")
    assert read_elf(path) is None
    assert compiler(path) == compiler(tmp_path / "none") == ""


@given(st.data())
def test_a_damaged_elf_file_never_fails(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(elf(bytes(20), b"GCC"))
    for at in data.draw(st.lists(st.integers(20, len(content) - 1), max_size=8)):
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    found = read_elf(path)
    assert found is None or found.machine == "x86_64"


def test_the_build_id_covers_all_files_of_ggml(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    library = folder / "libllama.so"
    library.write_bytes(elf(b"a" * 20))
    assert build_id(library) == (b"a" * 20).hex()
    kernels = folder / "libggml-cpu.so.0"
    kernels.write_bytes(elf(b"b" * 20))
    (folder / "libggml-cpu.so").symlink_to(kernels)
    (folder / "libother.so").touch()
    assert library_files(library) == [library, kernels]
    first = build_id(library)
    kernels.write_bytes(elf(b"c" * 20))
    assert len({first, build_id(library), (b"a" * 20).hex()}) == 3


def test_a_library_without_a_build_id_is_known_by_its_content(tmp_path: Path) -> None:
    library = tmp_path / "libllama.dylib"
    library.write_bytes(b"\xcf\xfa\xed\xfe and more")
    assert build_id(library) == hashlib.sha256(library.read_bytes()).hexdigest()


def test_a_digest_is_computed_once_for_each_content(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libllama.so"
    library.write_bytes(b"one")
    one = hashlib.sha256(b"one").hexdigest()
    assert sha256(library) == one
    with monkeypatch.context() as without:
        without.setattr(hashlib, "file_digest", lambda *_: pytest.fail("it is read again"))
        assert sha256(library) == one
        without.setattr(identity, "_known", {})  # another process
        assert sha256(library) == one
        os.utime(library, ns=(1, 1))
        with pytest.raises(BaseException, match="it is read again"):
            sha256(library)
    library.write_bytes(b"other")
    assert sha256_by_file(library) == {"libllama.so": hashlib.sha256(b"other").hexdigest()}
    assert list(msgspec.json.decode(cache.read_bytes())) == [str(library)]
    assert [file.name for file in cache.parent.iterdir()] == [cache.name], "no temporary file is left"


@pytest.mark.parametrize("content", [b"", b"no JSON", b'{"a": 1}'])
def test_a_damaged_or_unwritable_cache_is_not_used(tmp_path: Path, cache: Path, content: bytes) -> None:
    library = tmp_path / "libllama.so"
    library.write_bytes(b"one")
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    assert sha256(library) == hashlib.sha256(b"one").hexdigest()
    (tmp_path / "file").touch()
    other = tmp_path / "other.so"
    other.write_bytes(b"two")
    assert sha256(other, {"XDG_CACHE_HOME": str(tmp_path / "file")}) == hashlib.sha256(b"two").hexdigest()
    assert sha256_by_file(tmp_path / "none.so") == {}
