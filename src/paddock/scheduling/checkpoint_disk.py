"""The third tier of models with checkpoints: a file has a whole state.

Keys and values alone are not enough to continue, so a file has those of all tokens from the first on, and the
checkpoint at their end. It is used whole or not at all. Files are written while nothing runs, one at a time: of the
ends of conversations, of their last prompts, of system texts, and of other beginnings that several have. Those that
leave host memory before are written then.

A state that adds little to a file is written only before the worker ends. So a conversation is not written again with
each turn, and after a crash little of it is computed. A file replaces those of earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddock.disk_cache import Entry, StateKey, Written, entries_for
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.disk_tier import LEAST_GAIN, DiskTier, Write, spans_made_by
from paddock.scheduling.prices import Prices
from paddock.scheduling.sharing import reusable
from paddock.scheduling.unwritten import StoredPath
from paddock.types import CacheShape, Operation

_NEW_PART = 8
"""At least this part of a file's tokens is new, except before the worker ends."""
_USUAL = 1024
"""The tokens of a state by which it is decided whether the disk pays at all."""
_WAITING_PART = 2
"""Evicted states are written while all that wait for the writer are at most this part of host memory: it cannot be used
for others until they are written.
"""


class CheckpointDiskTier(DiskTier):
    def __init__(self, cache: CheckpointCache, shape: CacheShape, prices: Prices, key: StateKey) -> None:
        super().__init__(cache, shape, prices, key)
        self._states = cache
        self._is_ending = False

    @property
    def in_flight(self) -> int:
        return sum(self._states.state_size(write.entry.end) for write in self._writing)

    @property
    def pays(self) -> bool:
        return self._pays(_USUAL)

    def _pays(self, tokens: int) -> bool:
        size = self._states.state_size(tokens)
        return self._prices.restore_saves(tokens, size, on_disk=size) > 0

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish_read(self, states: Sequence[Any | None], seconds: float) -> None:
        read, self._reading = self._reading, None
        assert read is not None, "a read was ordered"
        assert self._index is not None, "nothing is read before"
        request, (entry, _), state = read.request, read.entries[0], states[0]
        limit, gained = reusable(request), 0
        if state is None:
            self._index.remove(entry)
            self.counts.failed_reads += 1
        elif not self._is_cancelled:
            before = self._states.lookup(read.namespace, request.tokens, limit)
            self._states.adopt_state(read.namespace, request.tokens[: entry.end], state)
            gained = max(self._states.lookup(read.namespace, request.tokens, limit) - before, 0)
            self.counts.read_bytes += entry.size
            self._prices.disk_read.observe(entry.size, seconds)
            self.counts.tokens += gained
            request.from_disk += gained
        self._adopted += read.tokens
        if not self._states.has_operations:
            self.end_operations()  # nothing was adopted
        if state is not None and not gained and self._waiting and self._waiting[0] is request:
            self._released.append(self._waiting.popleft())  # trying again would not help

    def _missing_files(self, own: str, tokens: list[int], known: int) -> list[tuple[Entry, int]]:
        assert self._index is not None, "checked by the callers"
        found = self._index.match(own, tokens, partial=False)
        if len(found) != 1:
            return []
        entry, gain = found[0][0], found[0][0].end - known
        if not entry.size or gain < LEAST_GAIN or 2 * self._size(entry) > self._states.max_stored:
            return []  # what was read is copied, so it is held twice for a moment
        pays = self._prices.is_worth_restoring(gain, self._states.state_size(entry.end), on_disk=entry.size)
        return found if pays else []

    def _size(self, entry: Entry) -> int:
        return self._states.state_tokens(entry.end)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_flush(self) -> None:
        self._is_ending = True
        self._states.unwritten_states.reconsider()

    def next_writes(self, now: float, *, is_busy: bool = False) -> list[Write]:
        """One file at a time, while nothing runs."""
        if self._writing or self._index is None or is_busy or now < self._refused_until:
            return []
        if not self._states.is_written_back:
            return []
        for state in self._states.states_to_write():
            if self._is_worth_writing(state):
                self._states.unwritten_states.forget(state.pieces[-1].span)
                return self._order(state)
        return []

    def evicted_writes(self, operations: Sequence[Operation], now: float) -> list[Write]:
        """What is left of these states in host memory stays until they are written."""
        writes: list[Write] = []
        unsaved = spans_made_by(operations)
        is_on = self._index is not None and now >= self._refused_until
        for state in self._states.unwritten_states.take_evicted():
            if is_on and not self._is_worth_writing(state):
                continue
            if is_on and self._has_room_for(state) and all(piece.span not in unsaved for piece in state.pieces):
                writes += self._order(state)
            else:
                self.counts.lost += 1
        self.counts.lost += self._states.unwritten_states.take_lost()
        self._states.begin_operations()
        return writes

    def _has_room_for(self, state: StoredPath) -> bool:
        """Whether an evicted state may wait for the writer."""
        waiting = sum(self._states.state_tokens(write.entry.end) for write in self._writing)
        most = self._states.max_stored // _WAITING_PART
        return waiting + self._states.state_tokens(len(state.tokens)) <= most and self._states.can_lend(state.pieces)

    def _order(self, path: StoredPath) -> list[Write]:
        """Order a file with the whole state."""
        assert self._index is not None, "checked by the callers"
        [entry] = entries_for(self._key, path.namespace, path.tokens, [0, len(path.tokens)])
        write = Write(entry, path.pieces, [])
        self._index.add(entry)
        self._writing.add(write)
        self._states.lend(path.pieces)
        return [write]

    def finish_writes(self, results: Sequence[tuple[Write, Written]], seconds: float, now: float) -> None:
        super().finish_writes(results, seconds, now)
        for write, written in results:
            if written.is_refused:
                self._states.want_file(write.pieces[-1].span)
            elif written.entry is not None and not write.is_cancelled:
                self._replace_with(written.entry)

    def _is_worth_writing(self, state: StoredPath) -> bool:
        assert self._index is not None, "checked by the callers"
        size = len(state.tokens)
        files = self._index.match(state.namespace, state.tokens, partial=False)
        new = size - (files[-1][0].end if files else 0)
        return new >= (LEAST_GAIN if self._is_ending else max(size // _NEW_PART, LEAST_GAIN)) and self._pays(size)

    def _replace_with(self, entry: Entry) -> None:
        """Forget the files that only the conversation of a new file has use for. The longest of them is kept: if the
        new one is the end of a conversation, that is its last prompt.
        """
        assert self._index is not None, "nothing is written before"
        read = [] if self._reading is None else [old.name for old, _ in self._reading.entries]
        for old, is_shared in self._index.prefixes_of(entry)[1:]:
            if not is_shared and old.name not in read and not self._states.is_beginning(old.namespace, old.tokens):
                self._index.remove(old)
                self._superseded.append(old)
