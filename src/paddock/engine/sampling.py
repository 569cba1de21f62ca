"""Logits → token. Own code rather than llama.cpp's chains: a draw depends on the seed and its place alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paddock.types import SamplingParams

Logits = npt.NDArray[np.float32]

_MASK = (1 << 64) - 1


def uniform(seed: int, drawn: int) -> float:
    """The `drawn`-th number in [0, 1) of this seed: a stateless hash (splitmix64), so nothing need be carried along."""
    z = (seed * 0xD1342543DE82EF95 + (drawn + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def sample(logits: Logits, params: SamplingParams, drawn: int) -> int:
    """Choose a token in llama.cpp's default order: top-k, top-p, min-p, temperature, draw."""
    if params.temperature <= 0 or params.top_k == 1:
        return int(logits.argmax())
    candidates = _top_k(logits, params.top_k)
    weights = _softmax(logits[candidates].astype(np.float64))
    if params.top_p < 1:
        keep = int(np.searchsorted(weights.cumsum(), params.top_p)) + 1
        candidates, weights = candidates[:keep], weights[:keep]
    if params.min_p > 0:
        keep = int(np.count_nonzero(weights >= params.min_p * weights[0]))
        candidates, weights = candidates[:keep], weights[:keep]
    if params.temperature != 1:
        weights = _softmax(logits[candidates].astype(np.float64) / params.temperature)
    cumulated = weights.cumsum()
    point = uniform(params.seed or 0, drawn) * cumulated[-1]
    return int(candidates[min(int(np.searchsorted(cumulated, point, side="right")), len(candidates) - 1)])


def _top_k(logits: Logits, k: int) -> npt.NDArray[np.int64]:
    """The indices of the k largest logits (all of them for k ≤ 0), largest first, ties by token id."""
    if 0 < k < len(logits):
        least = np.partition(logits, -k)[-k]
        above = np.flatnonzero(logits > least)
        chosen = np.sort(np.concatenate([above, np.flatnonzero(logits == least)[: k - len(above)]]))
        order: npt.NDArray[np.int64] = np.argsort(-logits[chosen], kind="stable")
        return chosen[order]
    return np.argsort(-logits, kind="stable")


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    total: npt.NDArray[np.float64] = weights / weights.sum()
    return total
