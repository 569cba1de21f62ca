"""The tokens still in the running, and the samplers that thin them out, in llama.cpp's meaning of each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paddock.types import SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

_GROUPS = 64
_ID_BITS = 21
_ID_MASK = (1 << _ID_BITS) - 1
_OWNER_SHIFT = _ID_BITS + 32
_LARGEST = np.finfo(np.float32).max
# Less is as good as nothing, and dividing by it could leave the range of floats.
COLDEST = 1e-30


class Candidates:
    """Token ids with their logits. `ordered` says that the likeliest come first."""

    def __init__(self, ids: Ids, logits: Floats, *, ordered: bool) -> None:
        self.ids = ids
        self.logits = logits
        self.ordered = ordered

    @classmethod
    def every(cls, row: Logits) -> Candidates:
        return cls(np.arange(len(row)), row.astype(np.float64), ordered=False)

    @classmethod
    def best(cls, row: Logits, k: int) -> Candidates:
        ids = top_k(row, k)
        return cls(ids, row[ids].astype(np.float64), ordered=True)

    def order(self) -> None:
        if not self.ordered:
            self.take(np.lexsort((self.ids, -self.logits)))
            self.ordered = True

    def take(self, which: slice | Ids | npt.NDArray[np.bool_]) -> None:
        self.ids, self.logits = self.ids[which], self.logits[which]

    def probabilities(self) -> Floats:
        return softmax(self.logits)


def top_k(row: Logits, k: int) -> Ids:
    """The ids of the k largest logits (all for k ≤ 0), largest first, ties by id."""
    if k <= 0 or k >= len(row):
        return np.lexsort((np.arange(len(row)), -row))
    best: Ids = top_k_rows(row[None], [0], k)[0]
    return best


def top_k_rows(rows: Logits, which: list[int], k: int) -> Ids:
    """`top_k` of several rows at once, for 0 < k ≤ their width.

    The k-th largest of the maxima of any grouping is no more than the k-th largest logit, so after one pass over all of
    them only the groups that reach it are looked at closely.
    """
    if which != list(range(len(rows))):
        rows = rows[which]
    count, width = rows.shape
    groups = _GROUPS if width >= 4 * k * _GROUPS else 1
    columns = width // groups
    grid = rows[:, : columns * groups].reshape(count, groups, columns)
    largest = grid.max(axis=1)
    highest = np.partition(largest, columns - k, axis=1)[:, columns - k :]
    least, most = highest[:, :1], highest.max(axis=1, keepdims=True)
    if np.isnan(most).any():  # a broken model, or one row's overflow: no reason to end everybody's answers
        return top_k_rows(np.where(np.isnan(rows), np.float32(-np.inf), rows), list(range(count)), k)
    tail = rows[:, columns * groups :]
    if (least == most).all() and not (tail > most).any():
        return np.stack([_first_equal(row, value, k) for row, value in zip(rows, least, strict=True)])
    reached = largest >= least
    at = np.flatnonzero(reached)
    keys: list[Ids] = []
    if len(at) > (count + 3) * k:
        # Rows with very many equal logits: what lies above them is in few groups, and of the equal ones the first do.
        level = np.flatnonzero(np.count_nonzero(reached, axis=1) > 4 * k)
        reached[level] = largest[level] > least[level]
        at = np.flatnonzero(reached)
        ties = [(row, _first_equal(rows[row], least[row], k)) for row in level]
        keys += [_sort_keys(np.full(len(ids), row), rows[row, ids], ids) for row, ids in ties]
    row, column = np.divmod(at, columns)
    near = grid[row, :, column]
    hits = np.flatnonzero(near >= least[row])
    group, line = np.divmod(hits, groups)
    keys.append(_sort_keys(row[group], near.reshape(-1)[hits], line * columns + column[group]))
    if tail.size:
        row, rest = np.nonzero(tail >= least)
        ids = rest + columns * groups
        keys.append(_sort_keys(row, rows[row, ids], ids))
    # An equal one may have been found both ways.
    found = np.unique(np.concatenate(keys)) if len(keys) > 1 else np.sort(keys[0])
    begins = np.searchsorted(found, np.arange(count) << _OWNER_SHIFT)
    best: Ids = found[begins[:, None] + np.arange(k)] & _ID_MASK
    return best


def _sort_keys(owner: Ids, logits: Logits, ids: Ids) -> Ids:
    """Integers in the order of row, then falling logit, then id: one sort of them beats one by three keys by far."""
    bits = logits.view(np.int32).astype(np.int64)
    rising = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # floats sort like their bits, but for the sign
    falling = 0x7FFFFFFF - rising
    return (owner << _OWNER_SHIFT) | (falling << _ID_BITS) | ids


def _first_equal(row: Logits, value: Logits, count: int) -> Ids:
    """The first ids whose logit is `value`, looking no further than needed."""
    size = 64 * count
    while True:
        ids = np.flatnonzero(row[:size] == value)
        if len(ids) >= count or size >= len(row):
            return ids[:count]
        size *= 4


def usable(row: Logits) -> Logits | None:
    """The row, with what is not a number as forbidden and +inf as the largest number; None if no token is left."""
    peak = row.max()
    if not np.isfinite(peak):
        row = np.where(np.isnan(row), np.float32(-np.inf), np.minimum(row, _LARGEST))
        peak = row.max()
    return row if peak > -np.inf else None


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    result: Floats = weights / weights.sum()
    return result


# ── the samplers that only cut or reshape ────────────────────────────────────────────────────────────────────────────


def _top_k(candidates: Candidates, params: SamplingParams) -> None:
    if params.top_k > 0:
        candidates.order()
        candidates.take(slice(params.top_k))


def _top_p(candidates: Candidates, params: SamplingParams) -> None:
    if params.top_p < 1:
        candidates.order()
        keep = int(np.searchsorted(candidates.probabilities().cumsum(), params.top_p)) + 1
        candidates.take(slice(max(keep, params.min_keep)))


def _min_p(candidates: Candidates, params: SamplingParams) -> None:
    if params.min_p > 0:
        candidates.order()
        least = candidates.logits[0] + math.log(params.min_p)
        keep = int(np.count_nonzero(candidates.logits >= least))
        candidates.take(slice(max(keep, params.min_keep, 1)))


def _typical_p(candidates: Candidates, params: SamplingParams) -> None:
    """Keep the tokens whose surprise is nearest to what is expected, until their probabilities make `typical_p`."""
    if params.typical_p < 1:
        candidates.order()
        weights = candidates.probabilities()
        with np.errstate(divide="ignore"):
            surprise = -np.log(weights)
        expected = float(np.sum(weights * np.where(weights > 0, surprise, 0)))
        nearest = np.argsort(np.abs(surprise - expected), kind="stable")
        keep = int(np.searchsorted(weights[nearest].cumsum(), params.typical_p, side="right")) + 1
        candidates.take(np.sort(nearest[: max(keep, params.min_keep)]))


def _top_n_sigma(candidates: Candidates, params: SamplingParams) -> None:
    if params.top_n_sigma > 0:
        finite = candidates.logits[np.isfinite(candidates.logits)]
        if not len(finite):
            return
        candidates.take(candidates.logits >= finite.max() - params.top_n_sigma * finite.std())


def _temperature(candidates: Candidates, params: SamplingParams) -> None:
    temperature = params.temperature
    if params.dynatemp_range > 0 and len(candidates.ids) > 1:
        # The flatter the distribution, the hotter, within the range.
        weights = candidates.probabilities()
        positive = weights[weights > 0]
        flatness = float(-np.sum(positive * np.log(positive))) / math.log(len(weights))
        low, high = max(0.0, temperature - params.dynatemp_range), temperature + params.dynatemp_range
        temperature = low + (high - low) * flatness**params.dynatemp_exponent
    if temperature < COLDEST:
        candidates.order()
        candidates.take(slice(1))
    else:
        candidates.logits = candidates.logits / temperature


CUTS: dict[str, Callable[[Candidates, SamplingParams], None]] = {
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typ_p": _typical_p,
    "top_n_sigma": _top_n_sigma,
    "temperature": _temperature,
}
