"""Rows that have only the most likely tokens, as a device selected them, or as they are found here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Ids, Logits, first_of_rows, sort_keys, split_keys

KEPT = 64
"""The groups of a row that are kept, both of the large groups and of the small ones within them."""
_SHIFT = 4
RATIO = 1 << _SHIFT
"""How many small groups a large one has."""
_MOST_GROUPS = 1024
"""A GPU sorts so many numbers of each row in one short pass."""
_LINES, _LIKELY = 64, 192
"""Here a group has so many tokens, at equal distances, and nearly so many groups have a token that is kept."""


class OrderedRows(NamedTuple):
    logits: Logits
    ids: Ids
    """The tokens, in ascending order."""


class LikelyRows(NamedTuple):
    rows: OrderedRows
    bound: Logits
    """For each row: no other token has a larger logit."""


class SelectedRows(NamedTuple):
    groups: Logits
    """The logits of the selected groups of each row, in no order."""
    begins: Ids
    """The first token of each group."""
    tail: Logits
    """The logits of the last tokens, which no group has."""
    bound: Logits
    """For each row: no other token has a larger logit."""
    n_vocab: int

    def ordered(self) -> OrderedRows:
        """A copy, as one row of tokens for each row."""
        rows, kept, width = self.groups.shape
        order = self.begins.argsort(axis=1) + np.arange(0, rows * kept, kept)[:, None]
        logits = self.groups.reshape(-1, width).take(order.reshape(-1), axis=0).reshape(rows, -1)
        ids = (self.begins.take(order)[:, :, None] + np.arange(width)).reshape(rows, -1)
        if self.tail.size:
            last = np.arange(self.n_vocab - self.tail.shape[1], self.n_vocab)
            logits = np.concatenate([logits, self.tail], axis=1)
            ids = np.concatenate([ids, np.broadcast_to(last, self.tail.shape)], axis=1)
        return OrderedRows(logits, ids)

    def biased(self, rows: Ids, ids: Ids, bias: Logits) -> SelectedRows:
        """A copy, with a bias for tokens of these rows. Tokens that are not selected are ignored."""
        width, last = self.groups.shape[2], self.n_vocab - self.tail.shape[1]
        groups, tail = self.groups.copy(), self.tail.copy()
        which, group = np.nonzero(self.begins[rows] == (ids - ids % width)[:, None])
        groups[rows[which], group, ids[which] % width] += bias[which]
        if tail.size:
            which = np.flatnonzero(ids >= last)
            tail[rows[which], ids[which] - last] += bias[which]
        return self._replace(groups=groups, tail=tail)

    def top_k(self, k: int) -> tuple[Ids, Logits]:
        """The ids and logits of the k most likely tokens of each row, ties by id. `k` is at most `KEPT`."""
        rows, kept, width = self.groups.shape
        size = kept * width
        flat = self.groups.reshape(rows, size)
        least = np.sort(flat, axis=1)[:, size - k, None]  # of so few numbers, faster than a partition
        at = np.flatnonzero(flat >= least)
        group, place = at // width, at & (width - 1)
        keys = sort_keys(group // kept, flat.reshape(-1)[at], self.begins.reshape(-1)[group] + place)
        if self.tail.size:
            row, place = np.nonzero(self.tail >= least)
            ids = place + (self.n_vocab - self.tail.shape[1])
            keys = np.concatenate([keys, sort_keys(row, self.tail[row, place], ids)])
        keys.sort()
        return split_keys(first_of_rows(keys, rows, k))


def likely_rows(rows: Logits) -> LikelyRows | None:
    """The most likely tokens of whole rows, each filled up with tokens that cannot be chosen. None: there are few
    others, or a logit is NaN or infinite.
    """
    count, width = rows.shape
    columns = width // _LINES
    tail = rows[:, columns * _LINES :]
    if columns <= 4 * _LIKELY or not np.isfinite(tail).all():
        return None
    maxima = rows[:, : columns * _LINES].reshape(count, _LINES, columns).max(axis=1)
    if not np.isfinite(maxima).all():
        return None
    bound: Logits = np.partition(maxima, columns - _LIKELY, axis=1)[:, columns - _LIKELY]
    found = [np.flatnonzero(row > least) for row, least in zip(rows, bound, strict=True)]
    shape = count, max(map(len, found))
    logits, ids = np.full(shape, -np.inf, np.float32), np.full(shape, width - 1, np.int64)
    for index, which in enumerate(found):
        logits[index, : len(which)] = rows[index].take(which)
        ids[index, : len(which)] = which
    return LikelyRows(OrderedRows(logits, ids), bound)


def group_size(n_vocab: int) -> int:
    """The size of the large groups. 0: the vocabulary is too small."""
    size = RATIO
    while n_vocab // size > _MOST_GROUPS:
        size *= 2
    return size if n_vocab // size > KEPT else 0


def locate_groups(
    outer: npt.NDArray[np.int32],
    inner: npt.NDArray[np.int32],
    chosen: Logits,
    tail: Logits,
    *,
    size: int,
    n_vocab: int,
) -> SelectedRows | None:
    """The rows from the numbers of the large groups, the numbers of the small groups within these, the logits of the
    small groups, and the logits of the last tokens. None if a number is impossible.

    A token that was not selected has at most the logit of the smallest maximum of a selected group. For each of the
    large groups has a small one with the same maximum, so that the last large group is no better than the last small.
    """
    rows, kept, width = chosen.shape
    if inner.min() < 0 or inner.max() >= RATIO * kept or outer.min() < 0:
        return None
    first = np.arange(0, rows * kept, kept)[:, None]
    begins = outer.take((inner >> _SHIFT) + first).astype(np.int64) * size + (inner & (RATIO - 1)) * width
    in_order = np.sort(begins, axis=1)
    if in_order[:, -1].max() > n_vocab - width or (in_order[:, 1:] == in_order[:, :-1]).any():
        return None
    maxima = chosen[:, :, 0].copy()
    for place in range(1, width):  # much faster than `max` of an axis as short as this
        np.maximum(maxima, chosen[:, :, place], out=maxima)
    return SelectedRows(chosen, begins, tail, maxima.min(axis=1), n_vocab)


def is_selection_of(selected: SelectedRows, whole: Logits) -> bool:
    """Whether the only selected row has the logits of the whole row, and no other token is above the bound."""
    (logits,), (ids,) = selected.ordered()
    is_other = np.ones(len(whole), np.bool_)
    is_other[ids] = False
    return np.array_equal(whole[ids], logits) and not (whole[is_other] > selected.bound[0]).any()
