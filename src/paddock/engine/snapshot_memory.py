"""The memory of models whose state cannot be cut: sliding windows, recurrent and hybrid models.

libllama does not refuse to copy a part of such a state, but the answers are wrong afterwards. So everything here copies
whole sequences, and an operation on a part raises an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from paddock.engine.libllama import lib
from paddock.engine.state import PARTIAL_ONLY, Bytes, SequenceStates
from paddock.errors import DecodeFailed
from paddock.types import (
    Copied,
    Drop,
    Forget,
    Fork,
    Operation,
    Piece,
    Restore,
    Reuse,
    Save,
    SnapshotSize,
    StateFormatName,
)


class SnapshotMemory(SequenceStates):
    """Carries out the cache operations of the scheduler. Belongs to the engine thread."""

    bytes_per_token = 0
    """Tokens cannot be stored one by one."""
    format_name: StateFormatName = "whole"
    transposed = False
    saves_stream_parts = False
    keeps_images = False
    state_bytes = (0, 0)

    def __init__(self, context: Any, *, unified: bool, window: int) -> None:
        super().__init__(context, unified=unified)
        self._window = window
        self._snapshots: dict[int, Bytes] = {}
        self.reuse: Reuse = "none"
        self.snapshot = SnapshotSize()
        # Tokens outside the window are not copied, so a copy is in other cells and its last bits differ.
        self.has_exact_copies = window == 0

    def after_decode(self) -> None:
        pass

    def learn(self, sequence: int, decode: Callable[[int], object]) -> None:
        """Measure the size of a state with its first tokens. Copies are used only if a round trip gives the same bytes.

        `decode` computes the token at a position of the empty sequence.
        """
        decode(0)
        whole, partial = self._size(sequence), self._size(sequence, PARTIAL_ONLY)
        decode(1)
        per_token = self._size(sequence) - whole
        # A memory of one kind returns all of its state even if only this part is requested.
        per_window_token = self._size(sequence, PARTIAL_ONLY) - partial if self._window and partial < whole else 0
        self.snapshot = SnapshotSize(whole - per_token, per_token - per_window_token, per_window_token, self._window)
        try:
            before = self._read(sequence)
            self._forget(sequence)
            if self._write_state(sequence, before) and np.array_equal(self._read(sequence), before):
                self.reuse = "snapshot"
        except DecodeFailed:
            pass  # nothing is copied

    def apply(self, operations: Sequence[Operation]) -> list[Copied]:
        copied: list[Copied] = []
        for operation in operations:
            match operation:
                case Forget(sequence, 0):
                    self._forget(sequence)
                case Fork(source, target, length):
                    self._expect(source, length)
                    self._fork(source, target, length)
                case Save(sequence, 0, end, snapshot):
                    self._expect(sequence, end)
                    begun = time.perf_counter()
                    state = self._snapshots[snapshot] = self._read(sequence)
                    copied.append(Copied("save", state.nbytes, time.perf_counter() - begun))
                case Restore(sequence, 0, [piece]):
                    begun, state = time.perf_counter(), self._snapshots[piece.span]
                    if not self._write_state(sequence, state):
                        raise DecodeFailed(f"libllama could not restore {piece.length} tokens into the cache")
                    copied.append(Copied("restore", state.nbytes, time.perf_counter() - begun))
                    self._expect(sequence, piece.length)
                case Drop(snapshot):
                    del self._snapshots[snapshot]
                case _:
                    raise DecodeFailed(f"{operation} uses a part of a state that can only be copied as a whole")
        return copied

    def view_pieces(self, pieces: Sequence[Piece]) -> Any:
        [snapshot] = pieces
        return self._snapshots[snapshot.span]

    def pack(self, views: Any) -> Iterator[memoryview]:
        yield views.data

    def packed_size(self, views: Any) -> int:
        return len(views)

    def unpack(self, data: memoryview, tokens: int) -> Any:
        size = self.snapshot.bytes(tokens)
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes for {tokens} tokens, which take {size}")
        return np.frombuffer(data, np.uint8)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fork(self, source: int, target: int, length: int) -> None:
        # Copying onto a sequence that already has cells corrupts positions.
        self._forget(target)
        if self._unified:
            lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            if self._window:
                # Each sequence needs a window of its own: a cell that two sequences share is not reused when it has
                # left the window of both, and the windowed layers have cells for one window per sequence only.
                self._write_partial(target, self._read_partial(source))
        elif not self._write_state(target, self._read(source)):
            raise DecodeFailed(f"libllama could not copy sequence {source} to {target}")
        self.positions.fork(source, target, length)

    def _read(self, sequence: int) -> Bytes:
        return self._read_state(sequence, np.empty(self._size(sequence), np.uint8))
