"""Splits the bytes of `llama_state_seq_get_data` into spans of tokens and joins spans again.

libllama writes the cells of a sequence layer by layer: first all keys, then all values, each after a small header. The
format is not documented, so it is detected with a probe when a model is loaded. An unknown format is not used.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from paddock.errors import DecodeFailed

# libllama's flag for only the part of a state that cannot be cut: windowed and recurrent layers.
PARTIAL_ONLY = 1

Bytes = npt.NDArray[np.uint8]
Span = tuple[Bytes, ...]
"""One array for each group, with the shape layers by tokens by bytes."""


class SequenceStates:
    """Reads and writes the states of whole sequences of a context."""

    def __init__(self, context: Any, *, unified: bool) -> None:
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._unified = unified

    def _forget(self, sequence: int, start: int = 0) -> None:
        lib.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def _size(self, sequence: int, flags: int = 0) -> int:
        return int(lib.llama_state_seq_get_size_ext(self._context, sequence, flags))

    def _read_state(self, sequence: int, into: Bytes) -> Bytes:
        read = int(lib.llama_state_seq_get_data(self._context, _pointer(into), len(into), sequence))
        if read != len(into):
            raise DecodeFailed(f"libllama read {read} bytes of the state of sequence {sequence} instead of {len(into)}")
        return into

    def _write_state(self, sequence: int, data: Bytes) -> bool:
        return int(lib.llama_state_seq_set_data(self._context, _pointer(data), len(data), sequence)) == len(data)

    def _read_partial(self, sequence: int) -> Bytes:
        """The part of a state that cannot be cut: windowed and recurrent layers."""
        into = np.empty(self._size(sequence, PARTIAL_ONLY), np.uint8)
        size = len(into)
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

    def __init__(self, prefix: bytes, streams: int, groups: list[_Group], infix: bytes) -> None:
        self._prefix = prefix
        self._streams = streams
        self._groups = groups
        self._infix = infix
        self.bytes_per_token = sum(group.layers * group.row for group in groups)
        self.transposed = any(group.element for group in groups)

    @classmethod
    def learn(cls, blob: bytes, tokens: int) -> StateFormat:
        """Detect the format from a blob with this many tokens. Raises `UnknownFormat` if a byte is unexpected."""
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
            for position in range(tokens):
                if reader.read("iI4x") != (position, 1):
                    raise UnknownFormat("unexpected cell metadata")
            transposed, layers = reader.read("II")
            infix = struct.pack("<II", transposed, layers)
            groups = _group([reader.segment(tokens) for _ in range(layers)])
            groups += _group([reader.segment(tokens, transposed=bool(transposed)) for _ in range(layers)])
            if set(blob[reader.at :]) - {0} or len(blob) - reader.at > 4 * streams:
                raise UnknownFormat("unexpected bytes at the end")
        except (struct.error, IndexError) as error:
            raise UnknownFormat(str(error)) from error
        return cls(prefix, streams, groups, infix)

    def size(self, tokens: int) -> int:
        """The size of a blob."""
        return 8 + 4 + 4 * self._streams + 12 * tokens + 8 + sum(group.size(tokens) for group in self._groups)

    def take(self, data: Bytes, first: int, last: int) -> Span:
        """The tokens at positions `first..last` of a blob. These are views if the cells are in order, else copies."""
        cells, at = self._cells(data)
        positions = data[at : at + 12 * cells].view(np.int32).reshape(cells, 3)[:, 0]
        at += 12 * cells + 8
        which: slice | npt.NDArray[np.int64]
        if (np.diff(positions) == 1).all():
            begin = first - int(positions[0])
            which = slice(begin, begin + last - first)
        else:  # the cells were not adjacent, so sort the tokens
            order = np.argsort(positions)
            which = order[np.searchsorted(positions[order], np.arange(first, last))]
        span: list[Bytes] = []
        for group in self._groups:
            span.append(group.bodies(data, at, cells)[:, which])
            at += group.size(cells)
        return tuple(span)

    def join(self, pieces: list[tuple[Span, int, int]], start: int, into: Bytes) -> int:
        """Write a blob of pieces (span, offset, length), the first token at position `start`. Returns its size."""
        tokens = sum(length for _, _, length in pieces)
        size = self.size(tokens)
        data = into[:size]
        head = self._prefix + struct.pack("<II", self._streams, tokens)
        data[: len(head)] = np.frombuffer(head, np.uint8)
        at = len(head)
        cells = data[at : at + 12 * tokens].view(np.int32).reshape(tokens, 3)
        cells[:, 0] = np.arange(start, start + tokens)
        cells[:, 1] = 1
        cells[:, 2] = 0
        at += 12 * tokens
        data[at : at + 8] = np.frombuffer(self._infix, np.uint8)
        at += 8
        for index, group in enumerate(self._groups):
            group.headers(data, at, tokens)[:] = np.frombuffer(group.header, np.uint8)
            bodies = group.bodies(data, at, tokens)
            put = 0
            for span, offset, length in pieces:
                bodies[:, put : put + length] = span[index][:, offset : offset + length]
                put += length
            at += group.size(tokens)
        data[at:] = 0  # the other streams have no cells
        return size

    def pack(self, pieces: list[tuple[Span, int, int]]) -> Iterator[memoryview]:
        """The rows of pieces (span, offset, length), layer by layer, without headers."""
        for index, group in enumerate(self._groups):
            for layer in range(group.layers):
                rows = [span[index][layer, offset : offset + length] for span, offset, length in pieces]
                yield np.concatenate(rows).reshape(-1).data

    def unpack(self, data: memoryview, tokens: int) -> Span:
        """The span that `pack` wrote, as views of the data."""
        if len(data) != tokens * self.bytes_per_token:
            raise ValueError(f"{len(data)} bytes for {tokens} tokens of {self.bytes_per_token} bytes each")
        rows = np.frombuffer(data, np.uint8)
        span: list[Bytes] = []
        at = 0
        for group in self._groups:
            end = at + group.layers * group.row * tokens
            span.append(rows[at:end].reshape(group.shape(tokens)))
            at = end
        return tuple(span)

    def _cells(self, data: Bytes) -> tuple[int, int]:
        counts = data[12 : 12 + 4 * self._streams].view(np.uint32)
        at = int(np.flatnonzero(counts)[0])
        return int(counts[at]), 12 + 4 * (at + 1)


class _Reader:
    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self.at = 0

    def read(self, layout: str) -> tuple[int, ...]:
        layout = f"<{layout}"
        values = struct.unpack_from(layout, self._blob, self.at)
        self.at += struct.calcsize(layout)
        return values

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
