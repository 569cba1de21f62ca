"""The tokens of one answer and its prompt, for penalties.

Counts and repetitions are updated for each token. The time for it does not depend on the vocabulary, and on the length
of the text only by one comparison of its tokens with the newest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Ids

_NOTHING = np.empty(0, np.int64)


class History:
    """The last token may be replaced until `counts` or `repeats` is called. Each of them has one window (negative: the
    whole text) for the whole answer; another one is allowed, but costs a new search.
    """

    def __init__(self, tokens: Sequence[int] = (), breakers: Collection[int] | npt.NDArray[np.int32] = ()) -> None:
        self._size = len(tokens)
        self._tokens = np.empty(self._size + 256, np.int64)
        self._tokens[: self._size] = tokens
        ids = np.fromiter(breakers, np.int64, len(breakers))
        self._breaks = np.zeros(int(ids.max()) + 1 if len(ids) else 0, np.bool_)
        self._breaks[ids] = True
        self._counts = _Counts()
        self._matches = _Matches()
        self._newest_breaker = -1
        self._searched = 0

    def __len__(self) -> int:
        return self._size

    def append(self, token: int) -> None:
        if self._size == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(self._size, np.int64)))
        self._tokens[self._size] = token
        self._size += 1

    def replace_last(self, token: int) -> None:
        self._tokens[self._size - 1] = token

    def counts(self, window: int) -> tuple[Ids, Ids]:
        """The ids among the last `window` tokens (negative: all), and their counts. Valid until the next call."""
        return self._counts.update(self._tokens[: self._size], self._start(window))

    def repeats(self, window: int, least: int) -> tuple[Ids, Ids]:
        """The ids that would continue a repetition, in order, and the length of the longest repetition for each.

        Only the last `window` tokens (negative: all) and repetitions of at least `least` tokens count. A repetition
        does not reach back beyond the last breaker.
        """
        start, size = self._start(window), self._size
        at, lengths = self._matches.update(self._tokens[:size], start, is_dense=least <= 0)
        # A repetition does not extend beyond the window.
        lengths = np.minimum(np.minimum(lengths, at - start + 1), self._since_breaker(start))
        long_enough = np.flatnonzero(lengths >= least)
        if not len(long_enough):
            return _NOTHING, _NOTHING
        # Sort by id, then by length: the last one of each id is the longest.
        keys = self._tokens[at[long_enough] + 1] << 32 | lengths[long_enough]
        keys.sort()
        ids = keys >> 32
        last = np.append(ids[1:] != ids[:-1], True)
        return ids[last], keys[last] & 0xFFFFFFFF

    def is_breaker(self, ids: Ids) -> npt.NDArray[np.bool_]:
        known = ids < len(self._breaks)
        known[known] = self._breaks[ids[known]]
        return known

    def copy(self) -> History:
        """A copy for another answer to the same prompt."""
        other = copy(self)
        vars(other).update(
            _tokens=self._tokens.copy(), _counts=self._counts.copy(), _matches=self._matches.copy(),
        )  # fmt: skip
        return other

    def prepare(self, *, counted: int | None = None, matched: int | None = None) -> None:
        """Count and match the prompt now, so that the first token takes no longer than others. The arguments are the
        windows of `counts` and `repeats`; None: not used.
        """
        if counted is not None:
            self.counts(counted)
        if matched is not None:
            self.repeats(matched, 1)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, window: int) -> int:
        return 0 if window < 0 else max(0, self._size - window)

    def _since_breaker(self, start: int) -> int:
        """The number of tokens in the window after its last breaker."""
        found = np.flatnonzero(self.is_breaker(self._tokens[self._searched : self._size]))
        if len(found):
            self._newest_breaker = self._searched + int(found[-1])
        self._searched = self._size
        return self._size - max(start, self._newest_breaker + 1)


class _Counts:
    """How often each token occurs between two positions that only move forward."""

    def __init__(self) -> None:
        self._start = self._end = 0
        self._slots: dict[int, int] = {}
        """Token → its index in the arrays."""
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def update(self, tokens: Ids, start: int) -> tuple[Ids, Ids]:
        new = len(tokens) - self._end
        if start < self._start or new > 8 or start - self._start > 8:
            self._count(tokens, start)
        else:
            for token in tokens[self._end :].tolist():
                self._add(token)
            for token in tokens[self._start : start].tolist():
                self._remove(token)
            self._start, self._end = start, len(tokens)
        size = len(self._slots)
        return self._ids[:size], self._counts[:size]

    def copy(self) -> _Counts:
        other = copy(self)
        vars(other).update(_slots=self._slots.copy(), _ids=self._ids.copy(), _counts=self._counts.copy())
        return other

    def _count(self, tokens: Ids, start: int) -> None:
        self._ids, self._counts = np.unique(tokens[start:], return_counts=True)
        self._slots = {token: slot for slot, token in enumerate(self._ids.tolist())}
        self._start, self._end = start, len(tokens)

    def _add(self, token: int) -> None:
        slot = self._slots.setdefault(token, size := len(self._slots))
        if slot == size:
            if size == len(self._ids):
                room = np.zeros(size + 64, np.int64)
                self._ids, self._counts = np.append(self._ids, room), np.append(self._counts, room)
            self._ids[slot], self._counts[slot] = token, 0
        self._counts[slot] += 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:  # the last one takes its place
            del self._slots[token]
            last = len(self._slots)
            if slot != last:
                moved = int(self._ids[last])
                self._ids[slot], self._counts[slot] = moved, self._counts[last]
                self._slots[moved] = slot


class _Matches:
    """For each earlier position of a text, how many tokens up to there are also the last tokens of the text."""

    def __init__(self) -> None:
        self._start = self._end = 0
        self._at = _NOTHING
        """The positions that match at least one token, in order."""
        self._lengths = np.zeros(1, np.int32)
        """After a place for "before the first token", the length for each position."""

    def update(self, tokens: Ids, start: int, *, is_dense: bool) -> tuple[Ids, Ids]:
        """The positions from `start` to the last but one, and their lengths; unless `is_dense`, those that match."""
        size = len(tokens)
        self._make_room(size)
        if start < self._start or size - self._end > 8:
            self._search(tokens, start)
        else:
            for end in range(self._end + 1, size + 1):
                self._extend(tokens[:end], start)
        if is_dense:
            return np.arange(start, size - 1), self._lengths[start + 1 : size].astype(np.int64)
        at = self._at[np.searchsorted(self._at, start) :]
        return at, self._lengths[at + 1].astype(np.int64)

    def copy(self) -> _Matches:
        other = copy(self)
        vars(other).update(_lengths=self._lengths.copy())
        return other

    def _make_room(self, size: int) -> None:
        if size >= len(self._lengths):
            self._lengths = np.append(self._lengths, np.zeros(size + 256, np.int32))

    def _search(self, tokens: Ids, start: int) -> None:
        self._lengths[:] = 0
        self._lengths[start + 1 : len(tokens)] = common_endings(tokens[start:])[:-1]
        self._at = np.flatnonzero(self._lengths) - 1
        self._start, self._end = start, len(tokens)

    def _extend(self, tokens: Ids, start: int) -> None:
        """A position matches one more than the position before it did, if its token equals the newest one."""
        at = np.flatnonzero(tokens[start:-1] == tokens[-1]) + start
        lengths = self._lengths[at] + 1
        self._lengths[self._at + 1] = 0
        self._lengths[at + 1] = lengths
        self._at, self._start, self._end = at, start, len(tokens)


def common_endings(tokens: Ids) -> Ids:
    """For each position of a text, the length of the common suffix of the text up to there and of the whole text. This
    is the Z-algorithm from the end, in linear time.
    """
    reverse = tokens[::-1].tolist()
    size = len(reverse)
    lengths = [0] * size
    if size:
        lengths[0] = size
    left = right = 0
    for position in range(1, size):
        length = min(lengths[position - left], right - position) if position < right else 0
        if length == 0 or position + length == right:
            while position + length < size and reverse[length] == reverse[position + length]:
                length += 1
            if position + length > right:
                left, right = position, position + length
        lengths[position] = length
    return np.array(lengths[::-1], np.int64)
