"""The cells of the context, and spans of keys and values in host memory.

Each span has memory of its own, of exactly its size. Copies go through one buffer, whose size the scheduler sets: so
what is held is what the scheduler counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import numpy as np

from paddock.engine.copy_threads import CopyThreads
from paddock.engine.host_buffer import new_buffer
from paddock.engine.libllama import lib
from paddock.engine.state import Bytes, SequenceStates, Span, StateFormat, UnknownFormat, has_own_memory
from paddock.engine.stream_rows import StreamRows
from paddock.errors import DecodeFailed
from paddock.types import (
    Adopt,
    Copied,
    Drop,
    Forget,
    Fork,
    Operation,
    Piece,
    Reserve,
    Restore,
    Reuse,
    Save,
    SnapshotSize,
    StateFormatName,
)

# The largest part of the cells that the probe for idle cells fills at once.
_MOST_REPEATED = 8 << 20
# The cells of an image with three rows and two columns between two tokens of text: position, column, row and token.
_IMAGE = np.array(
    [(0, 0, 0, 1), *((1, 1 + column, 1 + row, -1) for row in range(3) for column in range(2)), (4, 4, 4, 1)], np.int32
)


class PrefixMemory(SequenceStates):
    """Carries out the cache operations of the scheduler. Belongs to the engine thread."""

    def __init__(self, context: Any, *, unified: bool, on_gpu: bool, scratch: int) -> None:
        super().__init__(context, unified=unified)
        self.has_keys = True
        """Without keys and values nothing is in cells: only a whole state is."""
        self.reuse: Reuse = "prefix"
        self.snapshot = SnapshotSize()
        self.has_exact_copies = True
        self.keeps_images = False
        """Copies are right also where all tokens of an image have one position (M-RoPE)."""
        self._on_gpu = on_gpu
        self._threads = CopyThreads.for_gpu() if on_gpu else CopyThreads()  # on a CPU they would delay steps
        self._scratch = scratch
        self._format: StateFormat | None = None
        self._rows: StreamRows | None = None
        """Reads parts of streams. None: streams are read as a whole."""
        self._spans: dict[int, Span] = {}
        self._buffer: Bytes = np.empty(0, np.uint8)
        self._copied: list[Copied] = []
        self._dropped: dict[int, list[Span]] = {}
        """Spans that were dropped just now, by their tokens: new ones of the same size take their memory."""
        self._origins: dict[int, int] = {}
        """Streams whose keys and values are still in another one: libllama copies them when the next step begins."""
        self._overwritten: set[int] = set()
        """Sequences that another operation writes before the next step."""

    @property
    def bytes_per_token(self) -> int:
        return 0 if self._format is None else self._format.bytes_per_token

    @property
    def format_name(self) -> StateFormatName:
        return "whole" if self._format is None else self._format.name

    @property
    def saves_stream_parts(self) -> bool:
        return self._rows is not None

    @property
    def state_bytes(self) -> tuple[int, int]:
        """The size of a state: a fixed part, and a part for each token."""
        return (0, 0) if self._format is None else (self._format.size(0), self._format.state_bytes_per_token)

    @property
    def held_bytes(self) -> int:
        """The host memory that spans and the buffer really take."""
        return len(self._buffer) + sum(part.nbytes for span in self._spans.values() for part in span)

    @property
    def transposed(self) -> bool:
        """Whether values are stored transposed, as they are without flash attention."""
        return self._format is not None and self._format.transposed

    def learn(self, sequence: int, tokens: int) -> None:
        """Detect the format of this model's state. It is used only if a round trip gives the same bytes."""
        try:
            before = self._read_state(sequence, np.empty(self._size(sequence), np.uint8))
            format = StateFormat.learn(before.tobytes(), tokens, self._threads)
            half = tokens // 2
            halves = [(format.empty(half), 0, half), (format.empty(tokens - half), 0, tokens - half)]
            format.copy(before, 0, half, halves[0][0])
            format.copy(before, half, tokens, halves[1][0])
            joined = np.empty(format.size(tokens), np.uint8)
            format.join(halves, 0, joined)
            if self._round_trips(sequence, joined, before):
                self._format = format
                with suppress(DecodeFailed):
                    self.keeps_images = self._learn_images(sequence, before)
                self._round_trips(sequence, before, before)
        except (UnknownFormat, DecodeFailed):
            pass  # nothing is copied

    def find_rows(self, sequence: int, tokens: int, compute: Callable[[], None], *, layers: int) -> None:
        """Learn to read parts of streams, if that gives the bytes that libllama writes. The sequence has the `tokens`
        with which the format was learned; `compute` makes a step that adds one.
        """
        if self._unified or self._format is None or (shape := self._format.rows) is None:
            return
        state = self._read_state(sequence, np.empty(self._size(sequence), np.uint8))
        last, half = self._format.streams - 1, tokens // 2
        rows = StreamRows.find(self._context, shape, compute, layers=layers, streams=last + 1)
        self._forget(sequence, tokens)
        compute()  # libllama plans its graphs again without the sampler, so that the first request need not wait
        self._forget(sequence, tokens)
        if rows is None or not self._reads_as(rows, sequence, tokens, state):
            return
        if last != sequence:
            # The last stream gets the same tokens in another order: then no two streams are equal.
            span = self._format.empty(tokens)
            self._format.copy(state, 0, tokens, span)
            self._format.join([(span, half, tokens - half), (span, 0, half)], 0, state)
            is_right = self._write_state(last, state) and self._reads_as(rows, last, tokens, state)
            self._forget(last)
            if not is_right:
                return
        self._rows = rows

    def apply(self, operations: Sequence[Operation]) -> list[Copied]:
        self._copied = []
        self._overwritten = {operation.sequence for operation in operations if isinstance(operation, Restore)}
        for kind, group in groupby(operations, type):
            if kind is Save:
                self._save([operation for operation in group if isinstance(operation, Save)])
                continue
            for operation in group:
                match operation:
                    case Forget(sequence, start):
                        self._forget(sequence, start)
                    case Fork(source, target, length, start):
                        self._fork(source, target, start, length)
                    case Restore(sequence, start, pieces):
                        self._put(sequence, self._keys(pieces), start)
                    case Adopt(state, start, end, span):
                        self._adopt(state, start, end, span)
                    case Drop(span):
                        self._drop(span)
                    case Reserve(size):
                        self._reserve(size * self.bytes_per_token)
        self._dropped.clear()
        return self._copied

    def repeated(self, source: int, tokens: int, length: int) -> Bytes:
        """A state of `length` tokens that repeats the first ones of a sequence."""
        span, state = self._state_format.empty(tokens), np.empty(self._state_format.size(length), np.uint8)
        self._state_format.copy(self._read(source, 0, tokens), 0, tokens, span)
        self._state_format.join([(span, 0, tokens)] * (length // tokens), 0, state, renumber=True)
        return state

    def put(self, sequence: int, state: Bytes) -> None:
        """Give an empty sequence a whole state."""
        if not self._write_state(sequence, state):
            raise DecodeFailed(f"libllama did not accept the state of sequence {sequence}")

    def repeat(self, source: int, tokens: int, target: int, length: int) -> None:
        """Give an empty sequence `length` tokens that repeat the first ones of another sequence, in unified cells."""
        span = self._state_format.empty(tokens)
        self._state_format.copy(self._read(source, 0, tokens), 0, tokens, span)
        most = max(_MOST_REPEATED // self.bytes_per_token, tokens) // tokens * tokens
        for start in range(0, length, most):
            part = min(most, length - start)
            self._put_part(target, [(span, 0, tokens)] * (part // tokens), start, part, renumber=True)

    def view_pieces(self, pieces: Sequence[Piece]) -> Any:
        return self._keys(pieces)

    def pack(self, views: Any) -> Iterator[memoryview]:
        return self._state_format.pack(views)

    def packed_size(self, views: Any) -> int:
        return int(sum(length for _, _, length in views)) * self.bytes_per_token

    def unpack(self, data: memoryview, tokens: int) -> Any:
        return self._state_format.unpack(data, tokens)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _round_trips(self, sequence: int, written: Bytes, expected: Bytes) -> bool:
        """Whether a sequence has the expected state after this one was written."""
        self._forget(sequence)
        is_written = self._write_state(sequence, written)
        return is_written and np.array_equal(self._read_state(sequence, np.empty(len(expected), np.uint8)), expected)

    def _reads_as(self, rows: StreamRows, stream: int, tokens: int, state: Bytes) -> bool:
        """Whether the rows of a stream are those of this state of it."""
        expected, found = self._state_format.empty(tokens), self._state_format.empty(tokens)
        self._state_format.copy(state, 0, tokens, expected)
        for first, last in ((0, tokens // 2), (tokens // 2, tokens)):
            rows.read(stream, first, last, found, first)
        return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))

    def _learn_images(self, sequence: int, text: Bytes) -> bool:
        """Whether cells can be copied that have one position. `text`: the state of some tokens of text."""
        format, tokens = self._state_format, len(_IMAGE)
        if not format.has_extended_cells or len(text) != format.size(tokens):
            return False
        span, state = format.empty(tokens), np.empty(len(text), np.uint8)
        pieces = [(span, 0, tokens)]
        format.copy(text, 0, tokens, span)
        if not (format.positions(pieces)[:, :3] == np.arange(tokens)[:, None]).all():
            return False  # the extension is something else
        span[-1][0] = _IMAGE.view(np.uint8)
        format.join(pieces, 0, state)
        if not self._round_trips(sequence, state, state):
            return False
        if not self._unified and self._scratch != sequence:
            # A copied stream has the extensions too. Its keys and values follow with the next step.
            lib.llama_memory_seq_cp(self._memory, sequence, self._scratch, 0, -1)
            copied = self._read_state(self._scratch, np.empty(self._size(self._scratch), np.uint8))
            self._forget(self._scratch)
            format.copy(copied, 0, tokens, span)
        return np.array_equal(format.positions(pieces), _IMAGE)

    def _keys(self, pieces: Sequence[Piece]) -> list[tuple[Span, int, int]]:
        """The keys and values of pieces: each with its span, where it begins there, and its length."""
        return [(self._spans[piece.span], piece.offset, piece.length) for piece in pieces]

    def _reserve(self, size: int) -> None:
        """Replace the buffer. The old one is freed first."""
        self._buffer = np.empty(0, np.uint8)
        self._buffer = new_buffer(size, on_gpu=self._on_gpu)

    def _fork(self, source: int, target: int, start: int, length: int) -> None:
        # Only whole images are shared. If the target has a part of one, it gets all of it instead.
        start, length = self.positions.floor(source, start), self.positions.floor(source, length)
        first, last = self.positions.position(source, start), self.positions.position(source, length)
        # Copying onto a sequence that already has cells corrupts positions.
        self._forget(target, start)
        self.positions.fork(source, target, length)
        if self._unified:
            lib.llama_memory_seq_cp(self._memory, source, target, first, last)
            return
        has_room = self._size(source) <= len(self._buffer)
        if (self._on_gpu or not has_room) and self._overwritten.isdisjoint((source, target)):
            self._defer_copy(source, target, length)
        else:
            self._copy_stream(source, target, length)

    def _defer_copy(self, source: int, target: int, length: int) -> None:
        """Copies the whole stream when the next step begins. More than needed, but it needs no buffer, and stays on the
        GPU.
        """
        lib.llama_memory_seq_cp(self._memory, source, target, 0, -1)
        self._forget(target, length)
        self._origins[target] = self._origins.get(source, source)

    def after_decode(self) -> None:
        self._origins.clear()

    def _copy_stream(self, source: int, target: int, length: int) -> None:
        state = self._state_format.shorten(self._read(source, 0, length), length)
        if not self._write_state(target, state):
            raise DecodeFailed(f"libllama could not copy {length} tokens of sequence {source} to {target}")

    def _save(self, saves: list[Save]) -> None:
        """Adjacent spans are read at once: unified cells in parts that fit the buffer, and a stream as a whole, unless
        its rows can be read.
        """
        for run in _runs(saves):
            spans = [self._new_span(save.end - save.start) for save in run]
            self._spans |= dict(zip((save.span for save in run), spans, strict=True))
            sequence = run[0].sequence
            if self._rows is not None:
                begun = time.perf_counter()
                for save, span in zip(run, spans, strict=True):
                    self._save_rows(self._rows, self._origins.get(sequence, sequence), save.start, save.end, span)
                size = (run[-1].end - run[0].start) * self.bytes_per_token
                self._copied.append(Copied("save", size, time.perf_counter() - begun))
                continue
            for first, last in self._parts(run[0].start, run[-1].end, sequence):
                begun = time.perf_counter()
                data = self._read(sequence, first, last)
                read = self.positions.floor(sequence, first) if self._unified else 0
                for save, span in zip(run, spans, strict=True):
                    low, high = max(save.start, first), min(save.end, last)
                    if low < high:
                        self._state_format.copy(data, low - read, high - read, span, low - save.start)
                self._copied.append(Copied("save", len(data), time.perf_counter() - begun))

    def _save_rows(self, rows: StreamRows, stream: int, start: int, end: int, span: Span) -> None:
        """A GPU copies through the buffer: into fresh memory it takes several times as long as threads of the host."""
        most = len(self._buffer) // self.bytes_per_token if self._on_gpu else 0
        if not most:
            rows.read(stream, start, end, span, 0)
            return
        for first in range(start, end, most):
            tokens = min(most, end - first)
            size = tokens * self.bytes_per_token
            part = self._state_format.unpack(self._buffer[:size].data, tokens)
            rows.read(stream, first, first + tokens, part, 0)
            self._state_format.copy_rows(part, span, first - start)

    def _drop(self, name: int) -> None:
        span = self._spans.pop(name)
        # Not if another thread has views of it: references of the span are this variable and the argument.
        if sys.getrefcount(span) == 2 and sys.getrefcount(span[0].base) == len(span) + 1:
            self._dropped.setdefault(span[0].shape[1], []).append(span)

    def _new_span(self, tokens: int) -> Span:
        dropped = self._dropped.get(tokens)
        return dropped.pop() if dropped else self._state_format.empty(tokens)

    def _adopt(self, state: Span, start: int, end: int, name: int) -> None:
        if end - start == state[0].shape[1] and has_own_memory(state):
            self._spans[name] = state  # read from a file, and used as it is
            return
        span = self._spans[name] = self._new_span(end - start)
        for target, part in zip(span, state, strict=True):
            target[:] = part[:, start:end]

    @property
    def _state_format(self) -> StateFormat:
        assert self._format is not None, "nothing is copied if the format is unknown"
        return self._format

    @property
    def _buffered(self) -> int:
        """The bytes of the buffer that keys and values may take."""
        return len(self._buffer)

    def _parts(self, first: int, last: int, sequence: int | None = None) -> Iterator[tuple[int, int]]:
        """Cut the tokens `first..last` into parts whose state fits the buffer. A stream cannot be cut. Images of the
        sequence are not cut either, because all of an image is read at once: a large one does not fit.
        """
        most = (self._state_format.tokens_in(self._buffered) if self._unified else 0) or last - first
        while first < last:
            end = min(first + most, last)
            if sequence is not None and end < last:
                before = self.positions.floor(sequence, end)
                end = before if before > first else min(self.positions.ceiling(sequence, end), last)
            yield first, end
            first = end

    def _read(self, sequence: int, first: int, last: int) -> Bytes:
        """The state of these tokens of a sequence, and of the rest of an image at either end. A stream is always read
        as a whole.
        """
        if not self._unified:
            return self._read_state(sequence, self._room(self._tokens(sequence)))
        first, last = self.positions.floor(sequence, first), self.positions.ceiling(sequence, last)
        self._share_with_scratch(sequence, first, last)
        data = self._read_state(self._scratch, self._room(last - first))
        self._forget(self._scratch)
        return data

    def _tokens(self, sequence: int) -> int:
        """How many tokens a sequence has. With extended cells, several may have one position."""
        if not self._state_format.has_extended_cells:
            return self._length(sequence)
        return self._state_format.tokens_in(self._keys_size(sequence))

    def _keys_size(self, sequence: int) -> int:
        """The size of the keys and values of a sequence."""
        return self._size(sequence)

    def _share_with_scratch(self, sequence: int, first: int, last: int) -> None:
        self._forget(self._scratch)
        first, last = (self.positions.position(sequence, token) for token in (first, last))
        lib.llama_memory_seq_cp(self._memory, sequence, self._scratch, first, last)

    def _put(self, sequence: int, pieces: list[tuple[Span, int, int]], start: int) -> None:
        end = start + sum(length for _, _, length in pieces)
        if self._state_format.has_extended_cells:
            last = self._length(sequence) - 1 if start else -1
            self.positions.restore(sequence, start, last, self._state_format.positions(pieces))
        for first, last in self._parts(start, end):
            begun = time.perf_counter()
            size = self._put_part(sequence, _cut(pieces, first - start, last - start), first, last - first)
            self._copied.append(Copied("restore", size, time.perf_counter() - begun))

    def _put_part(
        self, sequence: int, pieces: list[tuple[Span, int, int]], start: int, tokens: int, *, renumber: bool = False
    ) -> int:
        """Append pieces to a sequence of `start` tokens. Returns the size of their state."""
        buffer = self._room(tokens)
        size = self._state_format.join(pieces, start, buffer, renumber=renumber)
        target = self._scratch if start else sequence
        if not self._write_state(target, buffer[:size]):
            raise DecodeFailed(f"libllama could not restore {tokens} tokens into the cache")
        if start:
            assert self._unified, "a stream is restored at once"
            lib.llama_memory_seq_cp(self._memory, target, sequence, -1, -1)
            self._forget(target)
        return size

    def _room(self, tokens: int) -> Bytes:
        """The buffer: fresh pages cost more than the copy into them. Without one, for a probe, a fresh one."""
        size = self._state_format.size(tokens)
        return self._buffer[:size] if size <= len(self._buffer) else np.empty(size, np.uint8)


def _runs(saves: list[Save]) -> Iterator[list[Save]]:
    run: list[Save] = []
    for save in saves:
        if run and (run[-1].sequence, run[-1].end) != (save.sequence, save.start):
            yield run
            run = []
        run.append(save)
    yield run


def _cut(pieces: list[tuple[Span, int, int]], start: int, end: int) -> list[tuple[Span, int, int]]:
    """The tokens `start..end` of these pieces."""
    found: list[tuple[Span, int, int]] = []
    at = 0
    for span, offset, length in pieces:
        low, high = max(start - at, 0), min(end - at, length)
        if low < high:
            found.append((span, offset + low, high - low))
        at += length
    return found
