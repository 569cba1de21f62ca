"""The format of a span's file.

`PADDSPAN`, the format version, the length of the description, the size and the CRC-32 of the state; the description
(msgpack: namespace, tokens, and the digests that chain spans); a SHA-256 of all that; padding; the state.

The description has a cryptographic digest because everything is decided by it. The state has a CRC-32: SHA-256 would
take longer than reading the file (docs/lab.md), and the CRC only has to find what a crash or a disk damaged.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from paddock.disk_cache.entry import Entry, file_name
from paddock.disk_cache.keys import FORMAT, TOKEN, encode_namespace

_MAGIC: Final = b"PADDSPAN"
_START: Final = struct.Struct("<8sIIQI")
_CHECKSUM: Final = hashlib.sha256().digest_size
_ALIGNMENT: Final = 64
_FIRST_READ: Final = 4096
MAX_DESCRIPTION: Final = 16 << 20
"""Four million tokens."""


class UnusableFile(Exception):
    """The file is not a span that this version can use. The message says why."""


class DamagedFile(UnusableFile):
    """The file is a span of this version, but its bytes are not those that were written."""


class _Description(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    namespace: bytes
    start: int
    end: int
    parent: bytes
    digest: bytes
    tokens: bytes


@dataclass(slots=True, frozen=True)
class Header:
    entry: Entry
    payload_start: int
    payload_crc: int


def payload_start(entry: Entry) -> int:
    return _aligned(_START.size + len(_describe(entry)) + _CHECKSUM)


def encode_header(entry: Entry, payload_size: int, payload_crc: int) -> bytes:
    description = _describe(entry)
    head = _START.pack(_MAGIC, FORMAT, len(description), payload_size, payload_crc) + description
    head += hashlib.sha256(head).digest()
    return head.ljust(_aligned(len(head)), b"\0")


def read_header(descriptor: int, size: int) -> Header:
    """The header of a file with this many bytes. Raises `UnusableFile`, and `OSError` if it cannot be read."""
    head = os.pread(descriptor, min(size, _FIRST_READ), 0)
    needed = header_size(head, size)
    if needed > len(head):
        head += os.pread(descriptor, needed - len(head), len(head))
    return parse_header(head, size)


def header_size(head: bytes, size: int) -> int:
    """The bytes of a header without its padding, from the first bytes of a file. Raises `UnusableFile`."""
    if not any(head):
        # After a power failure a file can have its size and no data.
        raise DamagedFile("it is empty")
    if not _MAGIC.startswith(head[: len(_MAGIC)]):
        raise UnusableFile("it is not a span of the cache")
    if len(head) < _START.size:
        raise DamagedFile(f"it ends after {len(head)} bytes")
    version: int
    length: int
    _, version, length, _, _ = _START.unpack_from(head)
    if version != FORMAT:
        raise UnusableFile(f"it has format version {version}, and this server reads version {FORMAT}")
    needed = _START.size + length + _CHECKSUM
    if length > MAX_DESCRIPTION or needed > size:
        raise DamagedFile(f"its header has {needed} bytes, and the file {size}")
    return needed


def parse_header(head: bytes, size: int) -> Header:
    needed = header_size(head, size)
    described = needed - _CHECKSUM
    if hashlib.sha256(head[:described]).digest() != head[described:needed]:
        raise DamagedFile("the checksum of its header is wrong")
    _, _, _, payload_size, payload_crc = _START.unpack_from(head)
    start = _aligned(needed)
    if start + payload_size != size:
        raise DamagedFile(f"it has {size} bytes instead of {start + payload_size}")
    try:
        found = msgspec.msgpack.decode(head[_START.size : described], type=_Description)
        namespace = found.namespace.decode("utf-8", "surrogatepass")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise DamagedFile("its header cannot be decoded") from None
    digests = len(found.parent) == len(found.digest) == _CHECKSUM
    if (
        not digests
        or not 0 <= found.start < found.end < 1 << 32
        or len(found.tokens) != (found.end - found.start) * TOKEN
    ):
        raise DamagedFile("its header contradicts itself")
    name = file_name(found.digest, found.start, found.end)
    entry = Entry(namespace, found.start, found.end, found.tokens, found.parent, found.digest, name, size)
    return Header(entry, start, payload_crc)


def crc(parts: Iterable[bytes | memoryview], value: int = 0) -> int:
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def _describe(entry: Entry) -> bytes:
    namespace = encode_namespace(entry.namespace)
    description = _Description(namespace, entry.start, entry.end, entry.parent, entry.digest, entry.token_bytes)
    return msgspec.msgpack.encode(description)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
