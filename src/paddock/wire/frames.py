"""Length-prefixed msgpack frames: four bytes big-endian, then the message. Pure bytes in, messages out."""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from paddock.wire.messages import ToGateway, ToWorker

M = TypeVar("M")

_LENGTH = struct.Struct(">I")
MAX_FRAME = 256 * 1024 * 1024


class FrameError(Exception):
    """The stream has invalid data. It cannot be used any longer."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: ToWorker | ToGateway) -> bytes:
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    size = len(buffer) - _LENGTH.size
    if size > MAX_FRAME:
        raise FrameError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
    _LENGTH.pack_into(buffer, 0, size)
    return bytes(buffer)


class FrameReader(Generic[M]):
    """Decodes the messages of one direction from chunks of a byte stream."""

    def __init__(self, messages: Any) -> None:
        """`messages` is the union of the message types."""
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        buffer = self._buffer
        buffer += data
        messages: list[M] = []
        offset = 0
        while len(buffer) - offset >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, offset)
            if size > MAX_FRAME:
                raise FrameError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
            start = offset + _LENGTH.size
            if len(buffer) - start < size:
                break
            try:
                with memoryview(buffer) as view:
                    messages.append(self._decoder.decode(view[start : start + size]))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise FrameError(f"undecodable frame: {error}") from error
            offset = start + size
        del buffer[:offset]
        return messages


def reader_for_worker() -> FrameReader[ToWorker]:
    """Reads messages of the gateway."""
    return FrameReader(ToWorker)


def reader_for_gateway() -> FrameReader[ToGateway]:
    """Reads messages of a worker."""
    return FrameReader(ToGateway)
