"""Splits the bytes of `llama_state_seq_get_data` into spans of tokens and joins spans again.

libllama writes the position of each cell, and then the cells layer by layer: first all keys, then all values, each
after a small header. Models with latent attention (MLA: DeepSeek, GLM) have keys only. Where a cell has more than one
position (M-RoPE: Qwen-VL) or its token matters, that is written beside the position. All tokens of an image may have
one position then, so a span holds the positions of its tokens too. The format is not documented, so it is detected with
a probe when a model is loaded. An unknown format is not used.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from paddock.engine.blocks import new_block
from paddock.engine.copy_threads import CopyThreads
from paddock.engine.libllama import lib
from paddock.engine.token_positions import TokenPositions
from paddock.errors import DecodeFailed
from paddock.types import StateFormatName

# libllama's flag for only the part of a state that cannot be cut: windowed and recurrent layers.
PARTIAL_ONLY = 1

Bytes = npt.NDArray[np.uint8]
Span = tuple[Bytes, ...]
"""One array for each group, with the shape layers by tokens by bytes. The last group may be positions and what cells
have beside them.
"""

# The bytes of a cell: its position, how many sequences have it, and the id of the sequence. Before the id: more
# positions and the token, in models that need them.
_CELL, _CELL_EXTENSION = 12, 12
_POSITION = 4
# What is stored of an extended cell, as columns of its numbers: the position, the column and the row in an image, and
# the token.
_STORED = (0, 2, 3, 4)
_COLUMN, _ROW = 2, 3


class SequenceStates:
    """Reads and writes the states of whole sequences of a context."""

    def __init__(self, context: Any, *, unified: bool) -> None:
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._unified = unified
        self.positions = TokenPositions()

    def _forget(self, sequence: int, start: int = 0) -> None:
        lib.llama_memory_seq_rm(self._memory, sequence, self.positions.position(sequence, start), -1)
        self.positions.forget(sequence, start)

    def _length(self, sequence: int) -> int:
        """How many positions a sequence has. Behind an image some may be missing."""
        return int(lib.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def _expect(self, sequence: int, tokens: int) -> None:
        held, expected = self._length(sequence), self.positions.position(sequence, tokens)
        if held > expected or (held < expected and not self.positions.has_images(sequence)):
            raise DecodeFailed(f"sequence {sequence} holds {held} positions, not {expected} for {tokens} tokens")

    def _size(self, sequence: int, flags: int = 0) -> int:
        return int(lib.llama_state_seq_get_size_ext(self._context, sequence, flags))

    def _read_state(self, sequence: int, into: Bytes) -> Bytes:
        read = int(lib.llama_state_seq_get_data(self._context, _pointer(into), len(into), sequence))
        if read != len(into):
            raise DecodeFailed(f"libllama read {read} bytes of the state of sequence {sequence} instead of {len(into)}")
        return into

    def _write_state(self, sequence: int, data: Bytes) -> bool:
        return int(lib.llama_state_seq_set_data(self._context, _pointer(data), len(data), sequence)) == len(data)

    def _read_partial(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        """The part of a state that cannot be cut: windowed and recurrent layers. In `buffer` if it has room."""
        size = self._size(sequence, PARTIAL_ONLY)
        into = np.empty(size, np.uint8) if buffer is None or len(buffer) < size else buffer[:size]
        read = int(lib.llama_state_seq_get_data_ext(self._context, _pointer(into), size, sequence, PARTIAL_ONLY))
        if read != size:
            raise DecodeFailed(f"libllama read {read} bytes of the checkpoint of sequence {sequence} instead of {size}")
        return into

    def _write_partial(self, sequence: int, data: Bytes) -> None:
        """Replace that part. The others stay as they are."""
        size = len(data)
        written = int(lib.llama_state_seq_set_data_ext(self._context, _pointer(data), size, sequence, PARTIAL_ONLY))
        if written != size:
            raise DecodeFailed(f"libllama took {written} of {size} bytes of the checkpoint of sequence {sequence}")


def _pointer(data: Bytes) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class UnknownFormat(Exception):
    """The state of this model has an unknown format."""


@dataclass(slots=True, frozen=True)
class _Group:
    """Consecutive layers with the same header and row size."""

    header: bytes
    layers: int
    row: int
    """The bytes of one token in one layer."""
    element: int
    """The bytes of one element if values are transposed, as they are without flash attention; else 0."""

    def size(self, tokens: int) -> int:
        return self.layers * (len(self.header) + self.row * tokens)

    def bodies(self, data: Bytes, at: int, tokens: int) -> Bytes:
        """A view of the group's rows in a blob, with the shape layers by tokens by bytes, also for transposed rows."""
        stride = len(self.header) + self.row * tokens
        rows = np.lib.stride_tricks.as_strided(
            data[at + len(self.header) :], (self.layers, self.row * tokens), (stride, 1), writeable=True
        )
        if not self.element:
            return rows.reshape(self.layers, tokens, self.row)
        lines = self.row // self.element
        return np.lib.stride_tricks.as_strided(
            rows, (self.layers, tokens, lines, self.element), (stride, self.element, tokens * self.element, 1)
        )

    def shape(self, tokens: int) -> tuple[int, ...]:
        """The shape of what `bodies` returns."""
        inner = (self.row // self.element, self.element) if self.element else (self.row,)
        return (self.layers, tokens, *inner)

    def headers(self, data: Bytes, at: int, tokens: int) -> Bytes:
        stride = len(self.header) + self.row * tokens
        return np.lib.stride_tricks.as_strided(data[at:], (self.layers, len(self.header)), (stride, 1), writeable=True)


class StateFormat:
    """The format in which this context writes a sequence. `learn` detects it."""

    def __init__(
        self, prefix: bytes, streams: int, groups: list[_Group], infix: bytes, extension: int, threads: CopyThreads
    ) -> None:
        self._threads = threads
        self._prefix = prefix
        self._streams = streams
        self._groups = groups
        self._infix = infix
        self._cell = _CELL + extension
        self._parts = [*groups, _Group(b"", 1, _POSITION + extension, 0)] if extension else groups
        """What a span consists of."""
        self.bytes_per_token = sum(part.layers * part.row for part in self._parts)
        self.state_bytes_per_token = self._cell + sum(group.layers * group.row for group in groups)
        self.transposed = any(group.element for group in groups)

    @classmethod
    def learn(cls, blob: bytes, tokens: int, threads: CopyThreads) -> StateFormat:
        """Detect the format from a blob with this many tokens. Raises `UnknownFormat` if a byte is unexpected.
        `threads` make large copies.
        """
        try:
            reader = _Reader(blob)
            prefix = blob[:8]  # a magic number and the sequence's id
            (streams,) = reader.read("8xI")
            for _ in range(streams):
                (cells,) = reader.read("I")
                if cells:
                    break
            if cells != tokens:
                raise UnknownFormat(f"{cells} cells for {tokens} tokens")
            extension = reader.cells(tokens)
            transposed, layers = reader.read("II")
            infix = struct.pack("<II", transposed, layers)
            groups = _group([reader.segment(tokens) for _ in range(layers)])
            if not reader.is_at_end(streams):  # with latent attention there are no values
                groups += _group([reader.segment(tokens, transposed=bool(transposed)) for _ in range(layers)])
            if not reader.is_at_end(streams):
                raise UnknownFormat("unexpected bytes at the end")
        except (struct.error, IndexError) as error:
            raise UnknownFormat(str(error)) from error
        return cls(prefix, streams, groups, infix, extension, threads)

    @property
    def streams(self) -> int:
        return self._streams

    @property
    def rows(self) -> list[tuple[int, int]] | None:
        """The layers of each group of a span, and the bytes of a token in one. None: a token's bytes are not adjacent
        in the cache, or a span has more than keys and values.
        """
        if self.transposed or self.has_extended_cells:
            return None
        return [(group.layers, group.row) for group in self._groups]

    @property
    def has_values(self) -> bool:
        """Whether there are values beside the keys. Latent attention has none."""
        layers = struct.unpack("<II", self._infix)[1]
        return sum(group.layers for group in self._groups) > int(layers)

    @property
    def name(self) -> StateFormatName:
        if self.has_values:
            return "keys_values_positions" if self.has_extended_cells else "keys_values"
        return "keys_positions" if self.has_extended_cells else "keys"

    @property
    def has_extended_cells(self) -> bool:
        return self._cell > _CELL

    def size(self, tokens: int) -> int:
        """The size of a blob."""
        return 8 + 4 + 4 * self._streams + self._cell * tokens + 8 + sum(group.size(tokens) for group in self._groups)

    def tokens_in(self, size: int) -> int:
        """How many tokens a blob of at most this size has; 0: not even one."""
        return max(size - self.size(0), 0) // self.state_bytes_per_token

    def empty(self, tokens: int) -> Span:
        """A new span in memory of its own."""
        return self.unpack(new_block(tokens * self.bytes_per_token), tokens)

    def copy(self, data: Bytes, first: int, last: int, into: Span, offset: int = 0) -> None:
        """Copy the tokens with the numbers `first..last` of a blob into a span, from its token `offset` on."""
        cells, at = self._cells(data)
        table = self._table(data, at, cells)
        order = self._order(table)
        which = slice(first, last) if order is None else order[first:last]
        to = slice(offset, offset + last - first)
        at += self._cell * cells + 8
        copies: list[partial[None]] = []
        for group, target in zip(self._groups, into, strict=False):
            bodies = group.bodies(data, at, cells)
            # Layer by layer: tokens that are sorted need memory.
            copies += [partial(_copy, bodies[layer], which, target[layer, to]) for layer in range(group.layers)]
            at += group.size(cells)
        self._threads.run(copies, (last - first) * self.bytes_per_token)
        if self.has_extended_cells:
            into[-1][0, to] = np.ascontiguousarray(table[which][:, _STORED]).view(np.uint8)

    def copy_rows(self, part: Span, into: Span, offset: int) -> None:
        """Copy all tokens of a span into another one, from its token `offset` on."""
        tokens = part[0].shape[1]
        to = slice(offset, offset + tokens)
        copies = [
            partial(_copy, source[layer], slice(None), target[layer, to])
            for source, target in zip(part, into, strict=True)
            for layer in range(len(source))
        ]
        self._threads.run(copies, tokens * self.bytes_per_token)

    def shorten(self, data: Bytes, tokens: int) -> Bytes:
        """The blob with only the first tokens of its sequence, in the same memory."""
        cells, at = self._cells(data)
        if cells == tokens:
            return data
        if self._order(self._table(data, at, cells)) is not None:  # sort the tokens
            span, shorter = self.empty(tokens), np.empty(self.size(tokens), np.uint8)
            self.copy(data, 0, tokens, span)
            self.join([(span, 0, tokens)], 0, shorter)
            return shorter
        others = self._streams - 1 - (at - 4 - 12) // 4
        data[at - 4 : at] = np.frombuffer(struct.pack("<I", tokens), np.uint8)
        put, at = at + self._cell * tokens, at + self._cell * cells
        data[put : put + 8] = data[at : at + 8].copy()
        put, at = put + 8, at + 8
        for group in self._groups:
            lines, unit = (group.row // group.element, group.element) if group.element else (1, group.row)
            for _ in range(group.layers):
                data[put : put + len(group.header)] = np.frombuffer(group.header, np.uint8)
                put, at = put + len(group.header), at + len(group.header)
                kept = data[at : at + group.row * cells].reshape(lines, unit * cells)[:, : unit * tokens].copy()
                data[put : put + kept.size] = kept.reshape(-1)
                put, at = put + kept.size, at + group.row * cells
        data[put : put + 4 * others] = 0
        return data[: put + 4 * others]

    def positions(self, pieces: list[tuple[Span, int, int]]) -> npt.NDArray[np.int32]:
        """What pieces (span, offset, length) hold of extended cells: a row for each token, with its position first."""
        rows = np.concatenate([span[-1][0, offset : offset + length] for span, offset, length in pieces])
        return np.ascontiguousarray(rows).view(np.int32)

    def join(self, pieces: list[tuple[Span, int, int]], start: int, into: Bytes, *, renumber: bool = False) -> int:
        """Write a blob of pieces (span, offset, length). Its positions begin with `start`, unless the pieces hold
        positions: then only if it must `renumber` them. Returns its size.
        """
        tokens = sum(length for _, _, length in pieces)
        size = self.size(tokens)
        data = into[:size]
        head = self._prefix + struct.pack("<II", self._streams, tokens)
        data[: len(head)] = np.frombuffer(head, np.uint8)
        at = len(head)
        cells = self._table(data, at, tokens)
        if self.has_extended_cells:
            cells[:, _STORED] = self.positions(pieces)
        if renumber or not self.has_extended_cells:
            cells[:, 0] = np.arange(start, start + tokens)
        cells[:, 1] = 1
        cells[:, -1] = 0
        at += self._cell * tokens
        data[at : at + 8] = np.frombuffer(self._infix, np.uint8)
        at += 8
        copies: list[partial[None]] = []
        for index, group in enumerate(self._groups):
            group.headers(data, at, tokens)[:] = np.frombuffer(group.header, np.uint8)
            bodies = group.bodies(data, at, tokens)
            put = 0
            for span, offset, length in pieces:
                which, to = slice(offset, offset + length), slice(put, put + length)
                copies += [
                    partial(_copy, span[index][layer], which, bodies[layer, to]) for layer in range(group.layers)
                ]
                put += length
            at += group.size(tokens)
        self._threads.run(copies, tokens * self.bytes_per_token)
        data[at:] = 0  # the other streams have no cells
        return size

    def pack(self, pieces: list[tuple[Span, int, int]]) -> Iterator[memoryview]:
        """The rows of pieces (span, offset, length), layer by layer, without headers."""
        for index, group in enumerate(self._parts):
            for layer in range(group.layers):
                rows = [span[index][layer, offset : offset + length] for span, offset, length in pieces]
                yield np.concatenate(rows).reshape(-1).data

    def unpack(self, data: memoryview | mmap.mmap | bytearray, tokens: int) -> Span:
        """The span that `pack` wrote, as views of the data."""
        if len(data) != tokens * self.bytes_per_token:
            raise ValueError(f"{len(data)} bytes for {tokens} tokens of {self.bytes_per_token} bytes each")
        rows = np.frombuffer(data, np.uint8)
        span: list[Bytes] = []
        at = 0
        for group in self._parts:
            end = at + group.layers * group.row * tokens
            span.append(rows[at:end].reshape(group.shape(tokens)))
            at = end
        return tuple(span)

    def _cells(self, data: Bytes) -> tuple[int, int]:
        counts = data[12 : 12 + 4 * self._streams].view(np.uint32)
        at = int(np.flatnonzero(counts)[0])
        return int(counts[at]), 12 + 4 * (at + 1)

    def _order(self, table: npt.NDArray[np.int32]) -> npt.NDArray[np.intp] | None:
        """Which cells the tokens of a sequence are in, one after another. None: in all, in order."""
        positions = table[:, 0]
        if (positions[1:] > positions[:-1]).all():
            return None
        if not self.has_extended_cells:
            return np.argsort(positions)
        order = np.lexsort((table[:, _COLUMN], table[:, _ROW], positions))
        return None if (order[1:] > order[:-1]).all() else order

    def _table(self, data: Bytes, at: int, cells: int) -> npt.NDArray[np.int32]:
        """What the blob says of each cell: a row for each."""
        return data[at : at + self._cell * cells].view(np.int32).reshape(cells, self._cell // 4)


def has_own_memory(span: Span) -> bool:
    """Whether a span is all of a block that may be written to, and not a view of something larger or of a file."""
    rows: Any = span[0].base
    view = rows.base
    return isinstance(view, memoryview) and not view.readonly and memoryview(view.obj).nbytes == rows.nbytes


def _copy(source: Bytes, which: slice | npt.NDArray[np.intp], target: Bytes) -> None:
    target[:] = source[which]


class _Reader:
    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self.at = 0

    def read(self, layout: str) -> tuple[int, ...]:
        layout = f"<{layout}"
        values = struct.unpack_from(layout, self._blob, self.at)
        self.at += struct.calcsize(layout)
        return values

    def cells(self, tokens: int) -> int:
        """Read the positions of the cells. Returns the size of what is beside each."""
        begin = self.at
        for extension in (0, _CELL_EXTENSION):
            self.at = begin
            if all(self.read(f"iI{extension}x4x") == (position, 1) for position in range(tokens)):
                return extension
        raise UnknownFormat("unexpected cell metadata")

    def is_at_end(self, streams: int) -> bool:
        """Whether only the counts of other streams follow, which have no cells."""
        return len(self._blob) - self.at <= 4 * streams and not any(self._blob[self.at :])

    def segment(self, tokens: int, *, transposed: bool = False) -> _Group:
        begin = self.at
        if transposed:
            _, element, lines = self.read("iII")
            row = element * lines
        else:
            _, row = self.read("iQ")
            element = 0
        header = self._blob[begin : self.at]
        self.at += row * tokens
        if self.at > len(self._blob):
            raise UnknownFormat("a layer exceeds the blob")
        return _Group(header, 1, row, element)


def _group(segments: list[_Group]) -> list[_Group]:
    groups: list[_Group] = []
    for segment in segments:
        if groups and (groups[-1].header, groups[-1].row) == (segment.header, segment.row):
            groups[-1] = _Group(segment.header, groups[-1].layers + 1, segment.row, segment.element)
        else:
            groups.append(segment)
    return groups
