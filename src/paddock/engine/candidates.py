"""The candidate tokens of one step, and the search for the k most likely."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

FEW = 1024
"""So few candidates are ordered at once."""
_GROUPS = 64
_ID_BITS = 21
_ID_MASK = (1 << _ID_BITS) - 1
_OWNER_SHIFT = _ID_BITS + 32
_FIRST_ROW = np.int64(0)
_buffers = threading.local()
LARGEST = np.finfo(np.float32).max


@dataclass(slots=True)
class Candidates:
    """Token ids with their logits."""

    ids: Ids
    logits: Floats
    ordered: bool
    """The most likely come first."""
    drawn_in_order: bool = False
    """The draw is among them as if they were ordered."""

    @classmethod
    def all(cls, row: Logits) -> Candidates:
        """Valid until the next call of this thread: new memory of this size would cost more than the work with it."""
        logits = buffer("logits", len(row), np.float64)
        logits[:] = row
        return cls(_every_id(len(row)), logits, ordered=False)

    @classmethod
    def best(cls, row: Logits, k: int) -> Candidates:
        ids = top_k(row, k)
        return cls(ids, row[ids].astype(np.float64), ordered=True)

    def order(self) -> slice | Ids:
        """Put the most likely first, ties by id. Returns the positions where the candidates were before."""
        if self.ordered:
            return slice(None)
        if (self.ids[1:] > self.ids[:-1]).all():
            positions = np.argsort(-self.logits, kind="stable")
        else:
            positions = np.lexsort((self.ids, -self.logits))
        self.take(positions)
        self.ordered = True
        return positions

    def take_best(self, count: int) -> None:
        """Keep the most likely, ordered. Only those that can stay are ordered."""
        rest = len(self.ids) - count
        if rest > 0 and not self.ordered and len(self.ids) > FEW:
            least = np.partition(self.logits, rest)[rest]
            self.take(np.flatnonzero(self.logits >= least))  # more than `count`, if some are equal
        self.order()
        self.take(slice(count))

    def take(self, which: slice | Ids | npt.NDArray[np.bool_]) -> None:
        self.ids, self.logits = self.ids[which], self.logits[which]

    def probabilities(self) -> Floats:
        weights: Floats = self.logits - self.logits.max()
        np.exp(weights, out=weights)
        weights /= weights.sum()
        return weights


def buffer(name: str, size: int, dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """A buffer that is used again. Each thread has its own."""
    found = getattr(_buffers, name, None)
    if found is None or len(found) != size:
        found = np.empty(size, dtype)
        setattr(_buffers, name, found)
    return found


@lru_cache(maxsize=2)
def _every_id(count: int) -> Ids:
    ids = np.arange(count)
    ids.flags.writeable = False
    return ids


def top_k(row: Logits, k: int) -> Ids:
    """The ids of the k largest logits (all for k ≤ 0), largest first, ties by id."""
    if k <= 0 or k >= len(row):
        return np.lexsort((np.arange(len(row)), -row))
    best: Ids = top_k_rows(row[None], [0], k)[0]
    return best


def top_k_rows(rows: Logits, which: list[int], k: int) -> Ids:
    """`top_k` of several rows at once, for 0 < k ≤ their width.

    The k-th largest group maximum is at most the k-th largest logit. So one pass computes the maxima, and only groups
    that reach this bound are searched.
    """
    count, width = len(which), rows.shape[1]
    groups = _GROUPS if width >= 4 * k * _GROUPS else 1
    if count == 1 and groups > 1 and (found := _usual_top_k(rows[which[0]], k)) is not None:
        return found[None]
    columns = width // groups
    grid = rows[:, : columns * groups].reshape(len(rows), groups, columns)
    largest = group_maxima(rows, which, groups)
    highest = np.partition(largest, columns - k, axis=1)[:, columns - k :]
    least, most = highest[:, :1], highest.max(axis=1, keepdims=True)
    if np.isnan(most).any():  # a broken model or an overflow in one row must not fail the others
        rows = rows[which]
        return top_k_rows(np.where(np.isnan(rows), np.float32(-np.inf), rows), list(range(count)), k)
    tail = rows[which, columns * groups :]
    if (least == most).all() and not (tail > most).any():
        return np.stack([_first_equal(rows[row], value, k) for row, value in zip(which, least, strict=True)])
    reached = largest >= least
    at = np.flatnonzero(reached)
    keys: list[Ids] = []
    if len(at) > (count + 3) * k:
        # Rows with very many equal logits: few groups have larger ones, and of the equal ones the first are enough.
        level = np.flatnonzero(np.count_nonzero(reached, axis=1) > 4 * k)
        reached[level] = largest[level] > least[level]
        at = np.flatnonzero(reached)
        ties = [(row, _first_equal(rows[which[row]], least[row], k)) for row in level]
        keys += [sort_keys(np.full(len(ids), row), rows[which[row], ids], ids) for row, ids in ties]
    row, column = np.divmod(at, columns)
    near = grid[np.asarray(which)[row], :, column]
    hits = np.flatnonzero(near >= least[row])
    group, line = np.divmod(hits, groups)
    keys.append(sort_keys(row[group], near.reshape(-1)[hits], line * columns + column[group]))
    if tail.size:
        row, rest = np.nonzero(tail >= least)
        keys.append(sort_keys(row, tail[row, rest], rest + columns * groups))
    # Equal logits may have been found both ways.
    found = np.unique(np.concatenate(keys)) if len(keys) > 1 else np.sort(keys[0])
    return first_of_rows(found, count, k) & _ID_MASK


def _usual_top_k(row: Logits, k: int) -> Ids | None:
    """`top_k_rows` of one row in fewer operations. None: it has NaN, many equal logits or likely tokens at its end."""
    columns = len(row) // _GROUPS
    grid = row[: columns * _GROUPS].reshape(_GROUPS, columns)
    largest = grid.max(axis=0)
    highest = np.partition(largest, columns - k)
    least = highest[columns - k]
    column = np.flatnonzero(largest >= least)
    if len(column) > 2 * k or not (row[columns * _GROUPS :] < least).all() or np.isnan(highest[columns - k :]).any():
        return None
    near = grid[:, column]
    line, place = (near >= least).nonzero()
    keys = sort_keys(_FIRST_ROW, near[line, place], line * columns + column[place])
    keys.sort()
    best: Ids = keys[:k] & _ID_MASK
    return best


def group_maxima(rows: Logits, which: list[int], groups: int) -> Logits:
    """For each of these rows the largest logits of its tokens i, i + n, i + 2n …, for n = its width // `groups`."""
    columns = rows.shape[1] // groups
    if which == list(range(len(rows))):
        every: Logits = rows[:, : columns * groups].reshape(len(rows), groups, columns).max(axis=1)
        return every
    maxima = np.empty((len(which), columns), np.float32)
    for index, row in enumerate(which):  # faster than a copy of the rows
        np.max(rows[row, : columns * groups].reshape(groups, columns), axis=0, out=maxima[index])
    return maxima


def found_by_row(keys: Ids, count: int) -> tuple[Ids, Ids]:
    """The ids of sorted keys as a matrix with one line per row, and how many ids each line has."""
    begins = np.searchsorted(keys, np.arange(count + 1) << _OWNER_SHIFT)
    found = np.diff(begins)
    places = np.minimum(begins[:-1, None] + np.arange(max(found.max(), 1)), len(keys) - 1)
    ids: Ids = keys[places] & _ID_MASK if len(keys) else np.zeros((count, 1), np.int64)
    return ids, found


def sort_keys(owner: Ids | np.int64, logits: Logits, ids: Ids) -> Ids:
    """Integers that sort by row, then falling logit, then id: much faster than a sort by three keys."""
    bits = logits.view(np.int32).astype(np.int64)
    rising = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # floats sort like their bits except for the sign
    falling = 0x7FFFFFFF - rising
    return (owner << _OWNER_SHIFT) | (falling << _ID_BITS) | ids


def first_of_rows(keys: Ids, count: int, k: int) -> Ids:
    """The first k of each row's sorted keys."""
    begins = np.searchsorted(keys, np.arange(count) << _OWNER_SHIFT)
    first: Ids = keys[begins[:, None] + np.arange(k)]
    return first


def split_keys(keys: Ids) -> tuple[Ids, Logits]:
    """The ids and logits of sort keys. A negative zero becomes a positive one."""
    rising = 0x7FFFFFFF - (keys >> _ID_BITS & 0xFFFFFFFF)
    bits = np.where(rising < 0, 0x80000000 - rising, rising)
    return keys & _ID_MASK, bits.astype(np.uint32).view(np.float32)


def _first_equal(row: Logits, value: Logits, count: int) -> Ids:
    """The first `count` ids whose logit is `value`."""
    size = 64 * count
    while True:
        ids = np.flatnonzero(row[:size] == value)
        if len(ids) >= count or size >= len(row):
            return ids[:count]
        size *= 4


def repair(row: Logits) -> Logits | None:
    """The row with NaN as -inf and +inf as the largest number. None: no token is left."""
    peak = row.max()
    if not np.isfinite(peak):
        row = np.where(np.isnan(row), np.float32(-np.inf), np.minimum(row, LARGEST))
        peak = row.max()
    return row if peak > -np.inf else None
