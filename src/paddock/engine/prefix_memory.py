"""The cells of the context, and spans of keys and values in host memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from paddock.engine.state import Bytes, SequenceStates, Span, StateFormat, UnknownFormat
from paddock.errors import DecodeFailed
from paddock.types import Adopt, Copied, Drop, Forget, Fork, Operation, Piece, Restore, Reuse, Save, SnapshotSize


class PrefixMemory(SequenceStates):
    """Carries out the cache operations of the scheduler. Belongs to the engine thread."""

    reuse: Reuse = "prefix"
    snapshot = SnapshotSize()
    has_exact_copies = True

    def __init__(self, context: Any, *, unified: bool, on_gpu: bool, scratch: int) -> None:
        super().__init__(context, unified=unified)
        self._on_gpu = on_gpu
        self._scratch = scratch
        self._format: StateFormat | None = None
        self._spans: dict[int, Span] = {}
        # Spans that are views of one buffer: how many there were, and which are left.
        self._shared: dict[int, tuple[int, set[int]]] = {}
        self._buffer: Bytes = np.empty(0, np.uint8)
        self._overwritten: set[int] = set()
        """Sequences that another operation writes before the next step."""

    @property
    def bytes_per_token(self) -> int:
        return 0 if self._format is None else self._format.bytes_per_token

    @property
    def transposed(self) -> bool:
        """Whether values are stored transposed, as they are without flash attention."""
        return self._format is not None and self._format.transposed

    def learn(self, sequence: int, tokens: int) -> None:
        """Detect the format of this model's state. It is used only if a round trip gives the same bytes."""
        try:
            before = self._read_state(sequence, np.empty(self._size(sequence), np.uint8))
            format = StateFormat.learn(before.tobytes(), tokens)
            halves = [format.take(before, 0, tokens // 2), format.take(before, tokens // 2, tokens)]
            pieces = [(halves[0], 0, tokens // 2), (halves[1], 0, tokens - tokens // 2)]
            buffer = np.empty(format.size(tokens), np.uint8)
            written = format.join(pieces, 0, buffer)
            self._forget(sequence)
            if self._write_state(sequence, buffer[:written]) and np.array_equal(
                self._read_state(sequence, self._room(len(before))), before
            ):
                self._format = format
        except (UnknownFormat, DecodeFailed):
            pass  # nothing is copied

    def apply(self, operations: Sequence[Operation]) -> list[Copied]:
        self._copied: list[Copied] = []
        self._overwritten = {operation.sequence for operation in operations if isinstance(operation, Restore)}
        for kind, group in groupby(operations, type):
            if kind is Save:
                self._save([operation for operation in group if isinstance(operation, Save)])
                continue
            if kind is Adopt:
                self._adopt([operation for operation in group if isinstance(operation, Adopt)])
                continue
            for operation in group:
                match operation:
                    case Forget(sequence, start):
                        self._forget(sequence, start)
                    case Fork(source, target, length, start):
                        self._fork(source, target, start, length)
                    case Restore(sequence, start, pieces):
                        begun = time.perf_counter()
                        size = self._put(sequence, self.view_pieces(pieces), start)
                        self._copied.append(Copied("restore", size, time.perf_counter() - begun))
                    case Drop(span):
                        self._drop(span)
        return self._copied

    def repeated(self, sequence: int, tokens: int, length: int) -> Bytes:
        """A state of `length` tokens that repeats the first tokens of the sequence."""
        data = self._read(sequence, 0, tokens, np.empty(self._read_size(sequence, 0, tokens), np.uint8))
        state = np.empty(self._state_format.size(length), np.uint8)
        self._state_format.join([(self._state_format.take(data, 0, tokens), 0, tokens)] * (length // tokens), 0, state)
        return state

    def put(self, sequence: int, state: Bytes) -> None:
        """Give an empty sequence a whole state."""
        if not self._write_state(sequence, state):
            raise DecodeFailed(f"libllama did not accept the state of sequence {sequence}")

    def view_pieces(self, pieces: Sequence[Piece]) -> list[tuple[Span, int, int]]:
        return [(self._spans[piece.span], piece.offset, piece.length) for piece in pieces]

    def pack(self, views: list[tuple[Span, int, int]]) -> Iterator[memoryview]:
        return self._state_format.pack(views)

    def unpack(self, data: memoryview, tokens: int) -> Span:
        return self._state_format.unpack(data, tokens)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fork(self, source: int, target: int, start: int, length: int) -> None:
        # Copying onto a sequence that already has cells corrupts positions.
        self._forget(target, start)
        if self._unified:
            lib.llama_memory_seq_cp(self._memory, source, target, start, length)
        elif self._on_gpu and self._overwritten.isdisjoint((source, target)):
            # Copies the whole stream when the next step begins. More than needed, but it stays on the GPU.
            lib.llama_memory_seq_cp(self._memory, source, target, 0, -1)
            self._forget(target, length)
        else:
            data = self._read(source, 0, length, np.empty(self._read_size(source, 0, length), np.uint8))
            self._put(target, [(self._state_format.take(data, 0, length), 0, length)], 0)

    def _save(self, saves: list[Save]) -> None:
        """Adjacent spans are read at once, into a buffer that they share. If they are the smaller part of what must be
        read, they are copied out of a reused buffer.
        """
        for run in _runs(saves):
            first, last = run[0].start, run[-1].end
            size = self._read_size(run[0].sequence, first, last)
            begun = time.perf_counter()
            kept = 2 * self._state_format.size(last - first) > size
            data = self._read(run[0].sequence, first, last, np.empty(size, np.uint8) if kept else self._room(size))
            self._hold(
                {save.span: self._state_format.take(data, save.start, save.end) for save in run}, copied=not kept
            )
            self._copied.append(Copied("save", size, time.perf_counter() - begun))

    def _adopt(self, adopts: list[Adopt]) -> None:
        """Spans of one state share its buffer, or are copied if they are the smaller part of it."""
        for _, group in groupby(adopts, lambda adopt: id(adopt.state)):
            run = list(group)
            parts: Span = run[0].state
            spans = {adopt.span: tuple(part[:, adopt.start : adopt.end] for part in parts) for adopt in run}
            self._hold(spans, copied=2 * sum(adopt.end - adopt.start for adopt in run) <= parts[0].shape[1])

    def _hold(self, spans: dict[int, Span], *, copied: bool) -> None:
        """Keep spans that are views of one buffer."""
        self._spans |= {name: _copy(span) for name, span in spans.items()} if copied else spans
        if not copied:
            shared = set(spans)
            self._shared |= dict.fromkeys(shared, (len(shared), shared))

    def _drop(self, span: int) -> None:
        del self._spans[span]
        size, shared = self._shared.pop(span, (0, set()))
        shared.discard(span)
        if 0 < len(shared) <= size // 2:
            # A shared buffer is freed only when all its spans are gone, so copy the last ones.
            for left in shared:
                self._spans[left] = _copy(self._spans[left])
                del self._shared[left]

    @property
    def _state_format(self) -> StateFormat:
        assert self._format is not None, "nothing is copied if the format is unknown"
        return self._format

    def _read_size(self, sequence: int, first: int, last: int) -> int:
        """The size of what `_read` returns. A stream is always read from its start."""
        tokens = last - first if self._unified else int(lib.llama_memory_seq_pos_max(self._memory, sequence)) + 1
        return self._state_format.size(tokens)

    def _read(self, sequence: int, first: int, last: int, into: Bytes) -> Bytes:
        """The state of these tokens of a sequence."""
        if not self._unified:
            return self._read_state(sequence, into)
        self._forget(self._scratch)
        lib.llama_memory_seq_cp(self._memory, sequence, self._scratch, first, last)
        data = self._read_state(self._scratch, into)
        self._forget(self._scratch)
        return data

    def _put(self, sequence: int, pieces: list[tuple[Span, int, int]], start: int) -> int:
        """Append pieces to a sequence. Returns the size of their state."""
        tokens = sum(length for _, _, length in pieces)
        buffer = self._room(self._state_format.size(tokens))
        size = self._state_format.join(pieces, start, buffer)
        target = self._scratch if start else sequence
        if not self._write_state(target, buffer[:size]):
            raise DecodeFailed(f"libllama could not restore {tokens} tokens into the cache")
        if start:
            assert self._unified, "a stream is restored at once"
            lib.llama_memory_seq_cp(self._memory, target, sequence, start, start + tokens)
            self._forget(target)
        return size

    def _room(self, size: int) -> Bytes:
        """A reused buffer: fresh pages cost more than the copy into them."""
        if len(self._buffer) < size:
            self._buffer = np.empty(size * 5 // 4, np.uint8)
        return self._buffer[:size]


def _runs(saves: list[Save]) -> Iterator[list[Save]]:
    run: list[Save] = []
    for save in saves:
        if run and (run[-1].sequence, run[-1].end) != (save.sequence, save.start):
            yield run
            run = []
        run.append(save)
    yield run


def _copy(span: Span) -> Span:
    return tuple(group.copy() for group in span)
