"""The memory of models with windowed or recurrent layers.

Such a state has two parts. Keys and values of layers that attend to the whole context can be cut and joined as in
`prefix_memory.py`. The rest is read and written as a whole: libllama's partial states. A sequence with keys and values
but without a fitting rest gives wrong answers and no error, so each operation checks the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from paddock.engine.libllama import lib
from paddock.engine.prefix_memory import PrefixMemory
from paddock.engine.state import PARTIAL_ONLY, Bytes, Span, StateFormat, UnknownFormat
from paddock.errors import DecodeFailed
from paddock.types import (
    AdoptCheckpoint,
    Copied,
    CopyCheckpoint,
    Drop,
    Forget,
    Fork,
    LoadCheckpoint,
    Operation,
    Piece,
    Restore,
    Reuse,
    Save,
    SaveCheckpoint,
    SnapshotSize,
)

_PROBE = 8
# A state begins with a magic number and the sequence's id, also a partial one.
_HEADER = 8

_View = tuple[list[tuple[Span, int, int]], Bytes]
"""Keys and values, and a checkpoint."""


class CheckpointMemory(PrefixMemory):
    """Carries out the cache operations of the scheduler. Belongs to the engine thread."""

    def __init__(self, context: Any, *, unified: bool, on_gpu: bool, window: int, scratch: int) -> None:
        super().__init__(context, unified=unified, on_gpu=on_gpu, scratch=scratch)
        self._window = window
        self._checkpoints: dict[int, Bytes] = {}
        self._nothing: Bytes = np.empty(0, np.uint8)
        """The partial state of an empty sequence."""
        self._deferrable: set[tuple[int, int]] = set()
        """Forks that libllama may make when the next step begins."""
        self._deferred: set[int] = set()
        """The targets of those that it will make."""
        self._clones: dict[int, int] = {}
        """Sequence → its tokens, if libllama has just made it a copy of all that another one knows."""
        self.reuse: Reuse = "none"
        self.snapshot = SnapshotSize()
        # Tokens outside the window are not copied, so a copy is in other cells and its last bits differ.
        self.has_exact_copies = window == 0
        self._sets_back = bool(lib.llama_n_rs_seq(context))

    @property
    def bytes_per_token(self) -> int:
        """Without keys and values a byte stands for the token itself."""
        return super().bytes_per_token if self.has_keys else 1

    @property
    def state_bytes(self) -> tuple[int, int]:
        """Keys and values are copied in a state with the rest."""
        fixed, per_token = super().state_bytes
        return (fixed + self._rest, per_token) if self._format is not None else (0, 0)

    @property
    def held_bytes(self) -> int:
        return super().held_bytes + sum(map(len, self._checkpoints.values()))

    def probe(self, sequence: int, decode: Callable[[int], object]) -> None:
        """Detect the format of this model's state. It is used only if cutting, joining and going back to a checkpoint
        give the same bytes. `decode` computes the token at a position of the empty sequence.
        """
        try:
            self._nothing = self._read_partial(sequence)
            states: list[tuple[Bytes, Bytes]] = []
            for position in range(_PROBE):
                decode(position)
                if position + 1 in (_PROBE // 2, _PROBE):
                    states.append((self._read_whole(sequence), self._read_partial(sequence)))
            (half, half_rest), (whole, rest) = states
            if 0 < self._window < _PROBE or not np.array_equal(whole[-len(rest) + _HEADER :], rest[_HEADER:]):
                raise UnknownFormat("the partial state is not the end of the whole state")
            keys = whole[: len(whole) - len(rest) + _HEADER]
            self.has_keys = len(keys) > _HEADER
            if self.has_keys:
                self._format = StateFormat.learn(keys.tobytes(), _PROBE, self._threads)
            per_token = (len(rest) - len(half_rest)) // (_PROBE - _PROBE // 2)
            self.snapshot = SnapshotSize(len(rest) - per_token * _PROBE, 0, per_token, self._window)
            if per_token and not self._window:
                raise UnknownFormat("the partial state grows with each token")
            if self._repeats(sequence, keys, rest, whole) and self._goes_back(sequence, half_rest, half):
                self.reuse = "checkpoint"
        except (UnknownFormat, DecodeFailed):
            pass  # nothing is copied

    def apply(self, operations: Sequence[Operation]) -> list[Copied]:
        copied: list[Copied] = []
        others: list[Operation] = []
        self._deferrable = deferrable_forks(operations)
        self._deferred.clear()
        self._clones.clear()
        for operation in operations:
            is_own = isinstance(operation, (SaveCheckpoint, LoadCheckpoint, CopyCheckpoint, AdoptCheckpoint))
            if not is_own and not (isinstance(operation, Drop) and operation.span in self._checkpoints):
                others.append(operation)
                continue
            copied += super().apply(others)
            others = []
            match operation:
                case SaveCheckpoint(sequence, length, checkpoint):
                    self._expect(sequence, length)
                    self._checkpoints[checkpoint] = self._read_partial(sequence)
                case LoadCheckpoint(target, length, _) | CopyCheckpoint(_, target, length) if (
                    self._clones.pop(target, None) == length
                ):
                    self._expect(target, length)  # it knows just that
                case LoadCheckpoint(sequence, length, checkpoint):
                    self._complete(sequence, length, self._checkpoints[checkpoint])
                case CopyCheckpoint(source, target, length):
                    self._expect(source, length)
                    self._complete(target, length, self._read_partial(source, self._buffer))
                case AdoptCheckpoint(state, checkpoint):
                    self._checkpoints[checkpoint] = state[1].copy()
                case Drop(checkpoint):
                    del self._checkpoints[checkpoint]
        return [*copied, *super().apply(others)]

    def roll_back(self, sequence: int, length: int) -> None:
        """Remove the tokens from `length` on, which the last step has computed for this sequence in one micro-batch
        with at least one token before them. The recurrent state is set back. Raises `DecodeFailed`.
        """
        if not lib.llama_memory_seq_rm(self._memory, sequence, self.positions.position(sequence, length), -1):
            raise DecodeFailed(f"libllama could not set sequence {sequence} back to {length} tokens")
        self.positions.forget(sequence, length)
        self._expect(sequence, length)

    def view_pieces(self, pieces: Sequence[Piece]) -> _View:
        """Keys and values, and the checkpoint at their end."""
        *keys, end = pieces
        return self._keys(keys), self._checkpoints[end.span]

    def pack(self, views: _View) -> Iterator[memoryview]:
        keys, rest = views
        if self.has_keys:
            yield from self._state_format.pack(keys)
        yield rest.data

    def packed_size(self, views: _View) -> int:
        keys, rest = views
        tokens = sum(length for _, _, length in keys) if self.has_keys else 0
        return tokens * self.bytes_per_token + len(rest)

    def unpack(self, data: memoryview, tokens: int) -> tuple[Span, Bytes]:
        size = tokens * self.bytes_per_token if self.has_keys else 0
        rest, largest = len(data) - size, self.snapshot.bytes(self.snapshot.window)
        if not self.snapshot.fixed <= rest <= largest:
            raise ValueError(f"{len(data)} bytes for {tokens} tokens, of which {size} are keys and values")
        keys = self._state_format.unpack(data[:size], tokens) if self.has_keys else ()
        return keys, np.frombuffer(data[size:], np.uint8)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _rest(self) -> int:
        """The most bytes of a state that are not keys and values."""
        if self._unified and not self._window:
            return len(self._nothing)  # the recurrent state is dropped before
        return self.snapshot.bytes(self.snapshot.window)

    @property
    def _buffered(self) -> int:
        return max(len(self._buffer) - self._rest, 0)

    def _complete(self, sequence: int, length: int, rest: Bytes) -> None:
        self._write_partial(sequence, rest)
        self._expect(sequence, length)

    def _repeats(self, sequence: int, keys: Bytes, rest: Bytes, whole: Bytes) -> bool:
        """Whether a state that was cut and joined is the same."""
        self._forget(sequence)
        if self.has_keys:
            halves = [self._state_format.empty(_PROBE // 2) for _ in range(2)]
            self._state_format.copy(keys, 0, _PROBE // 2, halves[0])
            self._state_format.copy(keys, _PROBE // 2, _PROBE, halves[1])
            self._put_part(sequence, [(half, 0, _PROBE // 2) for half in halves], 0, _PROBE)
        self._complete(sequence, _PROBE, rest)
        return np.array_equal(self._read_whole(sequence), whole)

    def _goes_back(self, sequence: int, rest: Bytes, whole: Bytes) -> bool:
        """Whether a sequence that goes back to a checkpoint is what it was there."""
        self.apply([Forget(sequence, _PROBE // 2)])
        self._complete(sequence, _PROBE // 2, rest)
        return np.array_equal(self._read_whole(sequence), whole)

    def _forget(self, sequence: int, start: int = 0) -> None:
        position = self.positions.position(sequence, start)
        # A recurrent state can at most be set back right after a step: see `roll_back`.
        is_lost = self._sets_back and 0 < position < self._length(sequence)
        if is_lost or not lib.llama_memory_seq_rm(self._memory, sequence, position, -1):
            # A recurrent state cannot be cut. Nothing was removed, so drop that state first.
            self._write_partial(sequence, self._nothing)
            lib.llama_memory_seq_rm(self._memory, sequence, position, -1)
        self.positions.forget(sequence, start)

    def _fork(self, source: int, target: int, start: int, length: int) -> None:
        is_whole = self._length(source) == self.positions.position(source, length)
        if self.has_keys and self._unified:
            super()._fork(source, target, start, length)
        elif self.has_keys and not self._may_defer(source, target, is_whole=is_whole):
            self._forget(target, start)
            self._copy_stream(source, target, length)
            self.positions.fork(source, target, length)
            return
        elif self.has_keys or is_whole:
            self._forget(target, start)
            self.positions.fork(source, target, length)
            self._defer_copy(source, target, length)
            self._deferred.add(target)
        else:
            self.positions.fork(source, target, length)
        # In unified cells each sequence needs a window of its own.
        if is_whole and not (self._unified and self._window):
            self._clones[target] = length

    def _may_defer(self, source: int, target: int, *, is_whole: bool) -> bool:
        """Whether libllama copies a stream, which needs no buffer. It does so when the next step begins, after a
        checkpoint was written. So it cannot copy a part of a window.
        """
        if (source, target) not in self._deferrable or not (is_whole or not self._window):
            return False
        return source in self._deferred or self._size(source) > len(self._buffer)

    def _save(self, saves: list[Save]) -> None:
        if not self.has_keys:
            self._spans |= {save.span: () for save in saves}
        else:
            super()._save(saves)

    def _adopt(self, state: Any, start: int, end: int, name: int) -> None:
        if not self.has_keys:
            self._spans[name] = ()
        else:
            super()._adopt(state[0], start, end, name)

    def _put(self, sequence: int, pieces: list[tuple[Span, int, int]], start: int) -> None:
        if self.has_keys:
            super()._put(sequence, pieces, start)

    def _share_with_scratch(self, sequence: int, first: int, last: int) -> None:
        super()._share_with_scratch(sequence, first, last)
        if not self._window:
            # A recurrent state is large, and not wanted here.
            self._write_partial(self._scratch, self._nothing)

    def _keys_size(self, sequence: int) -> int:
        return self._size(sequence) - self._size(sequence, PARTIAL_ONLY) + _HEADER

    def _read_state(self, sequence: int, into: Bytes) -> Bytes:
        """The keys and values of a sequence."""
        if (size := self._keys_size(sequence)) != len(into):
            raise DecodeFailed(f"sequence {sequence} has {size} bytes of keys and not {len(into)}")
        return super()._read_state(sequence, self._room_for(self._size(sequence)))[: len(into)]

    def _read_whole(self, sequence: int) -> Bytes:
        return super()._read_state(sequence, np.empty(self._size(sequence), np.uint8))

    def _write_state(self, sequence: int, data: Bytes) -> bool:
        """Keys and values without the rest."""
        size = len(data) + len(self._nothing) - _HEADER
        state = self._room_for(size)
        if state.ctypes.data != data.ctypes.data:  # else the data is in the buffer already
            state[: len(data)] = data
        state[len(data) :] = self._nothing[_HEADER:]
        return super()._write_state(sequence, state)

    def _room_for(self, size: int) -> Bytes:
        return self._buffer[:size] if size <= len(self._buffer) else np.empty(size, np.uint8)


def deferrable_forks(operations: Sequence[Operation]) -> set[tuple[int, int]]:
    """The source and target of each fork that may be made after all operations: they write nothing to the source, and
    to the target only a checkpoint of the same tokens, and read nothing of it.
    """
    found: set[tuple[int, int]] = set()
    for at, fork in reversed(list(enumerate(operations))):
        if not isinstance(fork, Fork):
            continue
        conflicts: list[Operation] = []
        for operation in operations[at + 1 :]:
            match operation:
                case Restore(sequence) | LoadCheckpoint(sequence) | CopyCheckpoint(_, sequence) | Fork(_, sequence):
                    conflicts += [operation] if sequence in (fork.source, fork.target) else []
                case Save(sequence) | SaveCheckpoint(sequence) | Forget(sequence):
                    conflicts += [operation] if sequence == fork.target else []
                case _:
                    pass
            if isinstance(operation, Fork) and operation.source == fork.target:
                is_later = (operation.source, operation.target) in found and operation.length == fork.length
                conflicts += [] if is_later else [operation]
        match conflicts:
            case [] | [LoadCheckpoint(fork.target, fork.length) | CopyCheckpoint(_, fork.target, fork.length)]:
                found.add((fork.source, fork.target))
            case _:
                pass
    return found
