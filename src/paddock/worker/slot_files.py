"""Files of saved slots: tokens, their keys and values, and what these depend on.

The format: `PADDSLOT`, the format version, the length of the header, the header (msgpack), the packed state, and a
SHA-256 of all that. A file is written under a temporary name and then renamed, so it is always complete.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import msgspec

from paddock.errors import InvalidRequest, Unavailable
from paddock.types import SlotPrefix, StateOrigin

_MAGIC = b"PADDSLOT"
_FORMAT = 1
_START = struct.Struct("<8sII")
_CHECKSUM = hashlib.sha256().digest_size


class Header(msgspec.Struct, frozen=True):
    origin: StateOrigin
    prefix: SlotPrefix


def write(folder: str, name: str, header: Header, state: Iterator[bytes | memoryview]) -> int:
    """Returns the file's size. Raises `InvalidRequest` if the name is not that of a regular file, and `Unavailable` if
    the file cannot be written.
    """
    encoded = msgspec.msgpack.encode(header)
    temporary = f".{name}.{secrets.token_hex(4)}"
    with _folder(folder) as place:
        _check_regular(place, name)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=place)
            try:
                with open(descriptor, "wb") as file:
                    digest = hashlib.sha256()
                    for part in chain([_START.pack(_MAGIC, _FORMAT, len(encoded)), encoded], state):
                        digest.update(part)
                        file.write(part)
                    file.write(digest.digest())
                    file.flush()
                    os.fsync(descriptor)
                    size = file.tell()
                os.replace(temporary, name, src_dir_fd=place, dst_dir_fd=place)
            except BaseException:
                os.unlink(temporary, dir_fd=place)
                raise
            os.fsync(place)
        except OSError as error:
            raise Unavailable(f"{name!r} cannot be written: {_reason(error, place)}", param="filename") from None
    return size


def _reason(error: OSError, place: int) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return reason
    disk = os.fstatvfs(place)
    return f"{reason}; the disk of slot_save_path has {disk.f_bavail * disk.f_frsize} bytes left"


def read(folder: str, name: str, origin: StateOrigin, *, limit: int) -> tuple[SlotPrefix, memoryview, int]:
    """A file's prefix, its packed state and its size. The state is mapped, so it takes no memory that the kernel cannot
    reclaim. Raises `InvalidRequest` if the file is incomplete, has another origin, or has more than `limit` bytes.
    """
    data = _map(folder, name, limit)
    if len(data) < _START.size or data[: len(_MAGIC)] != _MAGIC:
        raise InvalidRequest(f"{name!r} is not a saved slot", param="filename")
    _, version, length = _START.unpack_from(data)
    if version != _FORMAT:
        message = f"{name!r} has format version {version}, but this server reads version {_FORMAT}"
        raise InvalidRequest(message, param="filename")
    view = memoryview(data)
    body, checksum = view[:-_CHECKSUM], view[-_CHECKSUM:]
    if len(body) < _START.size + length or hashlib.sha256(body).digest() != checksum:
        raise InvalidRequest(f"{name!r} is damaged or incomplete", param="filename")
    try:
        header = msgspec.msgpack.decode(body[_START.size : _START.size + length], type=Header)
    except msgspec.MsgspecError:
        raise InvalidRequest(f"the header of {name!r} cannot be decoded", param="filename") from None
    _check_origin(name, header, origin)
    return header.prefix, body[_START.size + length :], len(data)


def _map(folder: str, name: str, limit: int) -> mmap.mmap | bytes:
    with _folder(folder) as place:

        def opener(path: str, flags: int) -> int:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)

        try:
            with open(name, "rb", opener=opener) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise InvalidRequest(f"{name!r} is not a regular file", param="filename")
                if status.st_size > limit:
                    message = (
                        f"{name!r} has {status.st_size} bytes, but the limit for prefixes is {limit} (--cache-ram)"
                    )
                    raise InvalidRequest(message, param="filename")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if status.st_size else b""
        except OSError as error:
            raise InvalidRequest(f"{name!r} cannot be read: {error.strerror}", param="filename") from None


@contextmanager
def _folder(path: str) -> Iterator[int]:
    """The folder as a descriptor, so that a later change of its path has no effect."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Unavailable(f"the folder of saved slots cannot be opened: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_regular(place: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
    except OSError:
        return  # it does not exist, or writing it reports the error
    if not stat.S_ISREG(mode):
        raise InvalidRequest(f"{name!r} is not a regular file", param="filename")


def _check_origin(name: str, header: Header, origin: StateOrigin) -> None:
    saved_origin = header.origin
    if saved_origin.model != origin.model:
        raise InvalidRequest(f"{name!r} was saved from another model", param="filename")
    compared = ["engine", "cache_type_k", "cache_type_v", "flash_attn", "settings"]
    if header.prefix.deterministic:
        compared.append("arithmetic")
    for field in compared:
        saved, here = getattr(saved_origin, field), getattr(origin, field)
        if saved != here:
            message = f"{name!r} was saved with another {field}: {saved}, but this model has {here}"
            raise InvalidRequest(message, param="filename")
    for number, _ in header.prefix.adapters:
        if saved_origin.adapters[number : number + 1] != origin.adapters[number : number + 1]:
            message = f"{name!r} was saved with the adapter {number}, which is a different one here"
            raise InvalidRequest(message, param="filename")
