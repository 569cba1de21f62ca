"""The tokens of one answer and its prompt, for penalties.

Repetitions are updated incrementally, so that a step takes at most one pass over the text in C.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Ids

_FEW = 16384
"""Up to this many tokens a sort is faster than a search in counts of the whole vocabulary."""


class History:
    """The last token may be replaced until `counts` or `repeats` is called."""

    def __init__(self, tokens: Sequence[int] = (), breakers: Collection[int] | npt.NDArray[np.int32] = ()) -> None:
        self._size = len(tokens)
        self._tokens = np.empty(self._size + 256, np.int64)
        self._tokens[: self._size] = tokens
        ids = np.fromiter(breakers, np.int64, len(breakers))
        self._breaks = np.zeros(int(ids.max()) + 1 if len(ids) else 0, np.bool_)
        self._breaks[ids] = True
        self._matches = np.empty(0, np.int64)
        """The common endings of the first `_matched` tokens."""
        self._matched = 0
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

    def latest(self, count: int) -> Ids:
        """A view of the last tokens, valid until the next token. A negative count means all."""
        return self._tokens[self._start(count) : self._size]

    def counts(self, window: int) -> tuple[Ids, Ids]:
        """The ids among the last `window` tokens (negative: all), in order, and how often each occurs."""
        tokens = self.latest(window)
        if len(tokens) <= _FEW:
            ids, counts = np.unique(tokens, return_counts=True)
            return ids, counts
        counts = np.bincount(tokens)
        ids = np.flatnonzero(counts)
        return ids, counts[ids]

    def repeats(self, window: int, least: int) -> tuple[Ids, Ids]:
        """The ids that would continue a repetition, in order, and the length of the longest repetition for each.

        Only the last `window` tokens (negative: all) and repetitions of at least `least` tokens count. A repetition
        does not reach back beyond the last breaker.
        """
        start, size = self._start(window), self._size
        self._match()
        limit = self._since_breaker(start)
        positions = np.arange(start, size - 1)
        # A repetition does not extend beyond the window.
        lengths = np.minimum(np.minimum(self._matches[start : size - 1], positions - start + 1), limit)
        long_enough = np.flatnonzero(lengths >= least)
        following = self._tokens[start + 1 : size][long_enough]
        lengths = lengths[long_enough]
        longest = np.full(int(following.max()) + 1 if len(following) else 0, -1, np.int64)
        np.maximum.at(longest, following, lengths)
        ids = np.flatnonzero(longest >= 0)
        return ids, longest[ids]

    def is_breaker(self, ids: Ids) -> npt.NDArray[np.bool_]:
        known = ids < len(self._breaks)
        known[known] = self._breaks[ids[known]]
        return known

    def copy(self) -> History:
        """A copy for another answer to the same prompt."""
        other = copy(self)
        vars(other).update(_tokens=self._tokens.copy())
        return other

    def prepare(self) -> None:
        """Match the prompt now, so that the first call of `repeats` is fast."""
        self._match()

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

    def _match(self) -> None:
        tokens = self._tokens[: self._size]
        if self._matched == 0 or self._size - self._matched > 8:
            self._matches = common_endings(tokens)
        else:
            for size in range(self._matched + 1, self._size + 1):
                # A position matches one more than the position before it did, if its token equals the newest one.
                grown = np.zeros(size, np.int64)
                grown[1:] = self._matches + 1
                grown[0] = 1
                grown[tokens[:size] != tokens[size - 1]] = 0
                self._matches = grown
        self._matched = self._size


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
