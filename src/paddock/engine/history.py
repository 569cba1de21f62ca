"""The tokens of one answer and its prompt, for penalties.

Counts and repetitions are updated for each token. The time for it does not depend on the vocabulary, and on the length
of the text only by how often its last two tokens occur in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Floats, Ids

_NOTHING = np.empty(0, np.int64)
_FEW = 4096
"""So many tokens are compared in less time than it takes to look one up."""


class History:
    """The last token may be replaced until `counts` or `repeats` is called. Each of them has one window (negative: the
    whole text) for the whole answer; another one is allowed, but costs a new search.
    """

    def __init__(self, tokens: Sequence[int] = (), breakers: Collection[int] | npt.NDArray[np.int32] = ()) -> None:
        self._size = len(tokens)
        self._tokens = np.empty(self._size + 256, np.int64)
        self._tokens[: self._size] = tokens
        self._least, self._largest = (min(tokens), max(tokens)) if self._size else (0, 0)
        ids = np.fromiter(breakers, np.int64, len(breakers))
        self._breaks = np.zeros(int(ids.max(initial=-1)) + 2, np.bool_)
        """The last element stands for all larger ids."""
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
        self._size += 1
        self.replace_last(token)

    def replace_last(self, token: int) -> None:
        self._tokens[self._size - 1] = token
        self._least, self._largest = min(self._least, token), max(self._largest, token)

    def check(self, n_vocab: int) -> None:
        """Raise an error if a token is outside of the vocabulary: the penalties would change another row."""
        if self._least < 0 or self._largest >= n_vocab:
            raise IndexError(f"the text has tokens from {self._least} to {self._largest}, the vocabulary {n_vocab}")

    def counts(self, window: int) -> tuple[Ids, Floats]:
        """The ids among the last `window` tokens (negative: all), and their counts. Valid until the next call."""
        return self._counts.update(self._tokens[: self._size], self._start(window))

    def counts_of(self, ids: Ids, window: int) -> Floats:
        """How often each of these ids is among the last `window` tokens (negative: all)."""
        self.counts(window)
        return self._counts.of(ids)

    def repeats(self, window: int, least: int) -> tuple[Ids, Ids]:
        """The ids that would continue a repetition, and its length. An id can occur several times.

        Only the last `window` tokens (negative: all) count. Repetitions of fewer than `least` tokens may be among them.
        A repetition does not reach back beyond the last breaker, and a breaker continues none: its length is -1.
        """
        start, size = self._start(window), self._size
        at, lengths = self._matches.update(self._tokens[:size], start, least)
        if not len(at):
            return _NOTHING, _NOTHING
        lengths = np.minimum(lengths, self._since_breaker(start))
        if start:  # a repetition does not extend beyond the window
            np.minimum(lengths, at - (start - 1), out=lengths)
        ids = self._tokens[at + 1]
        lengths[self._is_breaker(ids)] = -1
        return ids, lengths

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
            self.repeats(matched, 2)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, window: int) -> int:
        return 0 if window < 0 else max(0, self._size - window)

    def _is_breaker(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return self._breaks.take(ids, mode="clip")

    def _since_breaker(self, start: int) -> int:
        """The number of tokens in the window after its last breaker."""
        (found,) = self._is_breaker(self._tokens[self._searched : self._size]).nonzero()
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
        self._counts = np.empty(0, np.float64)
        """Floats, because they are multiplied with a penalty for every token."""
        self._by_token: Floats | None = None
        """The same, by token. The last one stands for all larger ids. None: not asked for yet."""

    def of(self, ids: Ids) -> Floats:
        if self._by_token is None:
            size = len(self._slots)
            known = self._ids[:size]
            self._by_token = np.zeros(int(known.max(initial=0)) + 2)
            self._by_token[known] = self._counts[:size]
        found: Floats = self._by_token.take(ids, mode="clip")
        return found

    def update(self, tokens: Ids, start: int) -> tuple[Ids, Floats]:
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
        vars(other).update(
            _slots=self._slots.copy(), _ids=self._ids.copy(), _counts=self._counts.copy(), _by_token=None,
        )  # fmt: skip
        return other

    def _count(self, tokens: Ids, start: int) -> None:
        self._ids, counts = np.unique(tokens[start:], return_counts=True)
        self._counts = counts.astype(np.float64)
        self._slots = {token: slot for slot, token in enumerate(self._ids.tolist())}
        self._start, self._end = start, len(tokens)
        self._by_token = None

    def _add(self, token: int) -> None:
        slot = self._slots.setdefault(token, size := len(self._slots))
        if slot == size:
            if size == len(self._ids):
                room = np.zeros(size + 64, np.int64)
                self._ids, self._counts = np.append(self._ids, room), np.append(self._counts, room.astype(np.float64))
            self._ids[slot], self._counts[slot] = token, 0
        self._counts[slot] += 1
        if self._by_token is not None:
            if token > len(self._by_token) - 2:
                self._by_token = None
            else:
                self._by_token[token] += 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._by_token is not None:
            self._by_token[token] -= 1
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
        self._at = self._found = _NOTHING
        """The positions that match at least two tokens, in order, and how many each of them matches."""
        self._lengths = np.zeros(0, np.int64)
        """The same for every position. The others have 0."""
        self._pairs = _Pairs()

    def update(self, tokens: Ids, start: int, least: int) -> tuple[Ids, Ids]:
        """The positions from `start` to the last but one that match at least `least` tokens, perhaps some others, and
        the number of tokens that they match.
        """
        size = len(tokens)
        if size > len(self._lengths):
            self._lengths = np.append(self._lengths, np.zeros(size + 256, np.int64))
        if start < self._start or size - self._end > 8:
            self._search(tokens, start)
        else:
            for end in range(self._end + 1, size + 1):
                self._extend(tokens[:end], start)
        self._start, self._end = start, size
        if least < 2:
            matches = tokens[start:-1] == tokens[-1:]
            return np.arange(start, size - 1), np.maximum(self._lengths[start : size - 1], matches)
        first = self._at.searchsorted(start) if start else 0
        return self._at[first:], self._found[first:]

    def copy(self) -> _Matches:
        other = copy(self)
        vars(other).update(_lengths=self._lengths.copy(), _pairs=copy(self._pairs))
        return other

    def _search(self, tokens: Ids, start: int) -> None:
        lengths = common_endings(tokens[start:])[:-1]
        at = np.flatnonzero(lengths > 1)
        self._lengths[:] = 0
        self._at, self._found = at + start, lengths[at]
        self._lengths[self._at] = self._found
        self._pairs.find(tokens[:-1])

    def _extend(self, tokens: Ids, start: int) -> None:
        """A position matches one more than the position before it did, if its token equals the newest one."""
        at = self._pairs.before_last(tokens, start) if len(tokens) > 2 else _NOTHING
        found = np.maximum(self._lengths[at - 1], 1) + 1 if len(at) else _NOTHING
        if len(self._at):
            self._lengths[self._at] = 0
        if len(at):
            self._lengths[at] = found
        self._at, self._found = at, found


class _Pairs:
    """Where each pair of neighbouring tokens ends in a text that only grows."""

    def __init__(self) -> None:
        self._known = 0
        """The number of tokens whose pairs are sorted."""
        self._ends = self._sorted = _NOTHING
        """The ends of these pairs, sorted by pair, and the pairs."""

    def find(self, tokens: Ids) -> None:
        pairs = tokens[:-1] << 32 | tokens[1:]
        order = np.argsort(pairs, kind="stable")
        self._known, self._ends, self._sorted = len(tokens), order + 1, pairs[order]

    def before_last(self, tokens: Ids, start: int) -> Ids:
        """Where the last two tokens occurred before, in order, at least after `start`."""
        size, (one, two) = len(tokens), tokens[-2:].tolist()
        is_short = size - start <= _FEW
        if not is_short and size - self._known > _FEW + size // 8:
            self.find(tokens[:-1])
        first = max(start if is_short else self._known, 1)
        ends: Ids = ((tokens[first:-1] == two) & (tokens[first - 1 : -2] == one)).nonzero()[0] + first
        if is_short:
            return ends
        pair = one << 32 | two
        low, high = self._sorted.searchsorted((pair, pair + 1))
        return np.concatenate((self._ends[low:high], ends))


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
