"""The tokens still in the running, and the samplers that thin them out, in llama.cpp's meaning of each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paddock.types import SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

_GROUPS = 64
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

    The k-th largest of the maxima of any grouping is no more than the k-th largest logit, so only groups that reach it
    are looked at closely. The pass over all logits, which is most of the work, is spread over threads.
    """
    width = rows.shape[1]
    groups = _GROUPS if width >= 4 * k * _GROUPS else 1
    columns = width // groups
    if which != list(range(len(rows))):
        rows = rows[which]
    grid = rows[:, : columns * groups].reshape(len(rows), groups, columns)
    largest = np.empty((len(rows), columns), np.float32)
    least = np.empty((len(rows), 1), np.float32)

    def reduce(part: slice) -> None:
        np.max(grid[part], axis=1, out=largest[part])
        least[part] = np.partition(largest[part], -k, axis=1)[:, -k : -k + 1 or None]

    spread(reduce, len(rows), width)
    if np.isnan(largest).any():  # a broken model, or one row's overflow: no reason to end everybody's answers
        return top_k_rows(np.where(np.isnan(rows), np.float32(-np.inf), rows), list(range(len(rows))), k)
    reached = largest >= least
    # A row with very many equal logits: what lies above them is in few groups, and of the equal ones the first suffice.
    level = np.flatnonzero(reached.sum(axis=1) > 4 * k) if groups > 1 else np.empty(0, np.int64)
    reached[level] = largest[level] > least[level]
    row, column = np.nonzero(reached)
    hit, line = np.nonzero(grid[row, :, column] >= least[row])
    rest_row, rest = np.nonzero(rows[:, columns * groups :] >= least)
    ties = [_first_equal(rows[index], least[index], k) for index in level]
    owner = np.concatenate([row[hit], rest_row, np.repeat(level, [len(tie) for tie in ties])])
    ids = np.concatenate([line * columns + column[hit], rest + columns * groups, *ties])
    if len(level):  # an equal one may have been found both ways
        owner, ids = np.unique(np.stack([owner, ids]), axis=1)
    order = np.lexsort((ids, -rows[owner, ids], owner))
    begins = np.searchsorted(owner[order], np.arange(len(rows)))
    best: Ids = ids[order][begins[:, None] + np.arange(k)]
    return best


def _first_equal(row: Logits, value: Logits, count: int) -> Ids:
    """The first ids whose logit is `value`, looking no further than needed."""
    size = 64 * count
    while True:
        ids = np.flatnonzero(row[:size] == value)
        if len(ids) >= count or size >= len(row):
            return ids[:count]
        size *= 4


def argmax_rows(rows: Logits) -> Ids:
    best = np.empty(len(rows), np.int64)

    def reduce(part: slice) -> None:
        np.argmax(rows[part], axis=1, out=best[part])

    spread(reduce, len(rows), rows.shape[1])
    return best


_THREADS = min(8, max(1, (os.cpu_count() or 1) // 2))
_WORTH_A_THREAD = 1 << 19


@lru_cache(1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="sampling")


def spread(work: Callable[[slice], None], rows: int, width: int) -> None:
    """Do the rows in a few parts at once where they are many; numpy lets go of the GIL inside its loops."""
    parts = min(_THREADS, rows, rows * width // _WORTH_A_THREAD)
    if parts <= 1:
        work(slice(0, rows))
        return
    edges = [rows * part // parts for part in range(parts + 1)]
    list(_threads().map(work, map(slice, edges, edges[1:])))


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
