"""Rows that have only the most likely tokens, as a device selected them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Ids, Logits

KEPT = 64
"""The groups of a row that are kept, both of the large groups and of the small ones within them."""
RATIO = 16
"""How many small groups a large one has."""
_MOST_GROUPS = 1024
"""A GPU sorts so many numbers of each row in one short pass."""


class SelectedRows(NamedTuple):
    logits: Logits
    ids: Ids
    """The tokens, in ascending order."""
    bound: Logits
    """For each row: no other token has a larger logit."""
    n_vocab: int


def group_size(n_vocab: int) -> int:
    """The size of the large groups. 0: the vocabulary is too small."""
    size = RATIO
    while n_vocab // size > _MOST_GROUPS:
        size *= 2
    return size if n_vocab // size > KEPT else 0


def sort_groups(
    outer: npt.NDArray[np.int32],
    inner: npt.NDArray[np.int32],
    chosen: Logits,
    tail: Logits,
    *,
    size: int,
    n_vocab: int,
) -> SelectedRows | None:
    """The rows from the numbers of the large groups, the numbers of the small groups within these, the logits of the
    small groups, and the logits of the last tokens, which no group has. None if a number is impossible.

    A token that was not selected has at most the logit of the smallest maximum of a selected group. For each of the
    large groups has a small one with the same maximum, so that the last large group is no better than the last small.
    """
    rows, kept, width = chosen.shape
    if inner.min() < 0 or inner.max() >= RATIO * kept or outer.min() < 0:
        return None
    first = np.arange(0, rows * kept, kept)[:, None]
    begins = outer.take(inner // RATIO + first).astype(np.int64) * size + inner % RATIO * width
    order = begins.argsort(axis=1) + first
    begins = begins.take(order)
    if begins[:, -1].max() > n_vocab - width or (begins[:, 1:] == begins[:, :-1]).any():
        return None
    bound = chosen.max(axis=2).min(axis=1)
    logits = chosen.reshape(-1, width).take(order.reshape(-1), axis=0).reshape(rows, -1)
    ids = (begins[:, :, None] + np.arange(width)).reshape(rows, -1)
    if tail.size:
        last = np.arange(n_vocab - tail.shape[1], n_vocab)
        logits = np.concatenate([logits, tail], axis=1)
        ids = np.concatenate([ids, np.broadcast_to(last, tail.shape)], axis=1)
    return SelectedRows(logits, ids, bound, n_vocab)


def is_selection_of(selected: SelectedRows, whole: Logits) -> bool:
    """Whether the only selected row has the logits of the whole row, and no other token is above the bound."""
    is_other = np.ones(len(whole), np.bool_)
    is_other[selected.ids[0]] = False
    return (
        np.array_equal(whole[selected.ids[0]], selected.logits[0]) and not (whole[is_other] > selected.bound[0]).any()
    )
