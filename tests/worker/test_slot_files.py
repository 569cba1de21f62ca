"""Files of saved slots: a complete file is read back, and any other file is refused."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.errors import InvalidRequest, PaddockError, Unavailable
from paddock.types import SlotPrefix, StateOrigin
from paddock.worker.slot_files import Header, read, write

ORIGIN = StateOrigin("engine 1", "digest", "f16", "f16", True, "n_threads 2")
LARGE = 1 << 20

_prefixes = st.builds(SlotPrefix, st.lists(st.integers(0, 2**31)), st.text(max_size=5), st.booleans())
_several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _save(folder: Path, prefix: SlotPrefix, *parts: bytes, origin: StateOrigin = ORIGIN) -> int:
    return write(str(folder), "slot.bin", Header(origin, prefix), iter(parts))


def _refusal(folder: Path, origin: StateOrigin = ORIGIN, limit: int = LARGE) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(str(folder), "slot.bin", origin, limit=limit)
    assert caught.value.param == "filename"
    return caught.value.message


def test_a_prefix_with_an_adapter_needs_the_same_adapter(tmp_path: Path) -> None:
    before = msgspec.structs.replace(ORIGIN, adapters=("first", "second"))
    here = msgspec.structs.replace(ORIGIN, adapters=("another", "second", "third"))
    _save(tmp_path, SlotPrefix([1, 2], adapters=((1, 0.5),)), b"state", origin=before)
    assert read(str(tmp_path), "slot.bin", here, limit=LARGE)[0].adapters == ((1, 0.5),)
    assert "adapter 1, which is a different one here" in _refusal(tmp_path, ORIGIN)
    _save(tmp_path, SlotPrefix([1, 2], adapters=((0, 1.0), (1, 0.5))), b"state", origin=before)
    assert "adapter 0, which is a different one here" in _refusal(tmp_path, here)
    _save(tmp_path, SlotPrefix([1, 2]), b"state", origin=before)
    assert read(str(tmp_path), "slot.bin", here, limit=LARGE)[0].tokens == [1, 2], "it used no adapter"


@_several
@given(_prefixes, st.lists(st.binary(max_size=100)))
def test_a_written_file_is_read_back(tmp_path: Path, prefix: SlotPrefix, parts: list[bytes]) -> None:
    size = _save(tmp_path, prefix, *parts)
    assert (tmp_path / "slot.bin").stat().st_size == size
    assert (tmp_path / "slot.bin").stat().st_mode & 0o777 == 0o600
    found, state, n_read = read(str(tmp_path), "slot.bin", ORIGIN, limit=LARGE)
    assert (found, bytes(state), n_read) == (prefix, b"".join(parts), size)
    assert os.listdir(tmp_path) == ["slot.bin"]


@_several
@given(st.data())
def test_a_damaged_file_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    _save(tmp_path, SlotPrefix([1, 2, 3]), b"keys", b"values")
    whole = (tmp_path / "slot.bin").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = data.draw(
        st.sampled_from(
            [
                whole[:at],
                whole + bytes(at + 1),
                whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :],
            ]
        )
    )
    (tmp_path / "slot.bin").write_bytes(broken)
    assert "'slot.bin'" in _refusal(tmp_path)


@_several
@given(st.binary(max_size=300))
def test_any_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "slot.bin").write_bytes(content)
    _refusal(tmp_path)
    (tmp_path / "slot.bin").write_bytes(b"PADDSLOT" + content)
    _refusal(tmp_path)
    start = struct.pack("<8sII", b"PADDSLOT", 1, len(content))
    (tmp_path / "slot.bin").write_bytes(start + content + hashlib.sha256(start + content).digest())
    _refusal(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("engine", "engine 2"), ("model", "other"), ("cache_type_k", "q8_0"), ("cache_type_v", "q8_0"),
     ("flash_attn", False), ("settings", "rope_freq_base 1e6")],
)  # fmt: skip
def test_the_error_names_the_difference(tmp_path: Path, field: str, value: object) -> None:
    _save(tmp_path, SlotPrefix([1]), b"x")
    assert field in _refusal(tmp_path, origin=msgspec.structs.replace(ORIGIN, **{field: value}))


def test_the_arithmetic_must_be_the_same_for_deterministic_requests_only(tmp_path: Path) -> None:
    here = msgspec.structs.replace(ORIGIN, arithmetic="n_threads 3")
    _save(tmp_path, SlotPrefix([1]), b"x")
    assert read(str(tmp_path), "slot.bin", here, limit=LARGE)[0].tokens == [1]
    _save(tmp_path, SlotPrefix([1], deterministic=True), b"x")
    assert read(str(tmp_path), "slot.bin", ORIGIN, limit=LARGE)[0].deterministic
    assert "n_threads 2, but this model has n_threads 3" in _refusal(tmp_path, origin=here)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nothing"])
def test_only_regular_files_are_read_and_replaced(tmp_path: Path, kind: str) -> None:
    _save(tmp_path, SlotPrefix([1]))
    name = (tmp_path / "slot.bin").rename(tmp_path / "elsewhere").with_name("slot.bin")
    if kind == "link":
        name.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(name)
    elif kind == "folder":
        name.mkdir()
    _refusal(tmp_path)
    if kind == "nothing":
        return
    with pytest.raises(InvalidRequest, match="not a regular file"):
        _save(tmp_path, SlotPrefix([2]))
    assert read(str(tmp_path), "elsewhere", ORIGIN, limit=LARGE)[0].tokens == [1]


def test_a_file_larger_than_the_memory_limit_is_refused(tmp_path: Path) -> None:
    size = _save(tmp_path, SlotPrefix([1]), bytes(1000))
    assert f"{size} bytes" in _refusal(tmp_path, limit=999)


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    _save(tmp_path, SlotPrefix([1]), b"old")

    def failing() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(Unavailable, match="No space left"):
        write(str(tmp_path), "slot.bin", Header(ORIGIN, SlotPrefix([2])), failing())
    assert os.listdir(tmp_path) == ["slot.bin"]
    assert bytes(read(str(tmp_path), "slot.bin", ORIGIN, limit=LARGE)[1]) == b"old"
    with pytest.raises(PaddockError, match="folder"):
        write(str(tmp_path / "none"), "slot.bin", Header(ORIGIN, SlotPrefix()), iter(()))


def test_the_error_for_a_full_disk_names_the_free_bytes(tmp_path: Path) -> None:
    def state() -> Iterator[bytes]:
        yield b"some"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(Unavailable, match=r"No space left on device; the disk of slot_save_path has \d+ bytes left"):
        write(str(tmp_path), "a.bin", Header(ORIGIN, SlotPrefix([1])), state())
    assert list(tmp_path.iterdir()) == [], "no temporary file is left"
