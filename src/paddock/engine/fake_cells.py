"""The cells of the fake engine, and their bytes in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from paddock.types import Adapters

BYTES_PER_TOKEN: Final = 1024


@dataclass(slots=True, eq=False)
class Cell:
    """A cell of the cache. Sequences that share a prefix share its cells."""

    token: int
    adapters: Adapters


def pack(cells: list[Cell]) -> Iterator[bytes]:
    data = msgspec.msgpack.encode([(cell.token, cell.adapters) for cell in cells])
    yield len(data).to_bytes(4, "little") + data.ljust(len(cells) * BYTES_PER_TOKEN - 4, b"\0")


def unpack(data: memoryview, tokens: int) -> list[Cell]:
    try:
        encoded = data[4 : 4 + int.from_bytes(data[:4], "little")]
        state = msgspec.msgpack.decode(encoded, type=list[tuple[int, Adapters]])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if len(state) != tokens:
        raise ValueError(f"the state has {len(state)} tokens instead of {tokens}")
    return [Cell(token, adapters) for token, adapters in state]
