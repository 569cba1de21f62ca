"""A sampler without any shortcut: every filter sorts all candidates, and penalties search the whole text each time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import dropwhile, takewhile
from typing import Any

import numpy as np

from paddock.engine.adaptive import AdaptiveTarget
from paddock.engine.candidates import Candidates, Logits
from paddock.engine.draws import uniform
from paddock.types import SamplingParams

_PENALTIES = ("penalties", "dry")


class ReferenceSampler:
    def __init__(self, params: SamplingParams, prompt: Sequence[int] = (), breakers: Collection[int] = ()) -> None:
        self._params = params
        self._text = list(prompt)
        self._breakers = breakers
        self._drawn = 0
        self._adaptive = AdaptiveTarget.of(params)

    def choose(self, row: Logits) -> int | None:
        """The next token. None: no token is left."""
        p = self._params
        row = row.copy()
        for token, amount in p.logit_bias:
            assert isinstance(token, int)
            row[token] += np.float32(amount)
        for name in takewhile(_PENALTIES.__contains__, p.samplers):
            self._penalize(name, row)
        if not row.max() > -np.inf:
            return None
        candidates = Candidates(np.arange(len(row)), row.astype(np.float64), ordered=False)
        for name in dropwhile(_PENALTIES.__contains__, p.samplers):
            if name in _PENALTIES:
                spread = np.full(len(row), -np.inf, np.float32)
                spread[candidates.ids] = candidates.logits
                self._penalize(name, spread)
                candidates.logits, candidates.ordered = spread[candidates.ids].astype(np.float64), False
            elif name != "adaptive_p":
                getattr(self, f"_{name}")(candidates, p)
        if not len(candidates.ids) or not candidates.logits.max() > -np.inf:
            return None
        probabilities = candidates.probabilities()
        weights = probabilities if self._adaptive is None else self._adaptive.weigh(probabilities)
        total = weights.cumsum()
        point = uniform(p.seed or 0, self._drawn) * total[-1]
        self._drawn += 1
        at = min(int(np.searchsorted(total, point, side="right")), len(weights) - 1)
        if self._adaptive is not None:
            self._adaptive.choose(float(probabilities[at]))
        self._text.append(int(candidates.ids[at]))
        return self._text[-1]

    # ── penalties ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _window(self, count: int) -> list[int]:
        return self._text if count < 0 else self._text[max(0, len(self._text) - count) :]

    def _penalize(self, name: str, row: Logits) -> None:
        p = self._params
        if name == "penalties":
            for token, count in Counter(self._window(p.repeat_last_n)).items():
                factor = np.float32(p.repeat_penalty)
                logit = row[token] * factor if row[token] <= 0 else row[token] / factor
                row[token] = float(logit) - count * p.frequency_penalty - p.presence_penalty
        elif p.dry_multiplier and p.dry_base >= 1:
            text = self._window(p.dry_penalty_last_n)
            for token, length in repeats(text, p.dry_allowed_length, self._breakers).items():
                if token not in self._breakers:
                    power = (length - p.dry_allowed_length) * math.log(p.dry_base)
                    row[token] -= np.float32(p.dry_multiplier * math.exp(power))

    # ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _top_k(self, candidates: Candidates, p: SamplingParams) -> None:
        if p.top_k > 0:
            candidates.order()
            candidates.take(slice(p.top_k))

    def _top_p(self, candidates: Candidates, p: SamplingParams) -> None:
        if p.top_p < 1:
            candidates.order()
            keep = int(np.searchsorted(candidates.probabilities().cumsum(), p.top_p)) + 1
            candidates.take(slice(max(keep, p.min_keep)))

    def _min_p(self, candidates: Candidates, p: SamplingParams) -> None:
        if p.min_p > 0:
            candidates.order()
            keep = int(np.count_nonzero(candidates.logits >= candidates.logits[0] + math.log(p.min_p)))
            candidates.take(slice(max(keep, p.min_keep, 1)))

    def _typ_p(self, candidates: Candidates, p: SamplingParams) -> None:
        if p.typical_p < 1:
            candidates.order()
            weights = candidates.probabilities()
            with np.errstate(divide="ignore"):
                surprise = -np.log(weights)
            entropy = float(np.sum(weights * np.where(weights > 0, surprise, 0)))
            nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
            keep = int(np.searchsorted(weights[nearest].cumsum(), p.typical_p, side="right")) + 1
            candidates.take(np.sort(nearest[: max(keep, p.min_keep)]))

    def _top_n_sigma(self, candidates: Candidates, p: SamplingParams) -> None:
        finite = candidates.logits[np.isfinite(candidates.logits)]
        if p.top_n_sigma > 0 and len(finite):
            candidates.take(candidates.logits >= finite.max() - p.top_n_sigma * finite.std())

    def _xtc(self, candidates: Candidates, p: SamplingParams) -> None:
        draw = uniform((p.seed or 0) ^ 0x5851F42D4C957F2D, self._drawn)
        if p.xtc_threshold > 0.5 or len(candidates.ids) < 2 or draw >= p.xtc_probability:
            return
        candidates.order()
        weights = candidates.probabilities()
        above = int(np.count_nonzero((weights >= p.xtc_threshold) & (weights > 0)))
        if above > 1 and len(candidates.ids) - above + 1 >= p.min_keep:
            candidates.take(slice(above - 1, None))

    def _temperature(self, candidates: Candidates, p: SamplingParams) -> None:
        temperature: Any = p.temperature
        if p.dynatemp_range > 0 and len(candidates.ids) > 1:
            weights = candidates.probabilities()
            positive = weights[weights > 0]
            flatness = min(float(-np.sum(positive * np.log(positive))) / math.log(len(weights)), 1.0)
            low, high = max(0.0, temperature - p.dynatemp_range), temperature + p.dynatemp_range
            temperature = low + (high - low) * flatness**p.dynatemp_exponent
        if temperature < 1e-30:
            candidates.order()
            candidates.take(slice(1))
        else:
            candidates.logits = candidates.logits / temperature


def repeats(text: list[int], least: int, breakers: Collection[int]) -> dict[int, int]:
    """The repetitions that llama.cpp's DRY sampler finds, by a direct search: the longest one that each token would
    continue.
    """
    limit = next((n for n, token in enumerate(reversed(text)) if token in breakers), len(text))
    found: dict[int, int] = {}
    for end in range(len(text) - 1):
        length = 0
        while length <= end and text[end - length] == text[-1 - length]:
            length += 1
        length = min(length, limit)
        if length >= least:
            found[text[end + 1]] = max(found.get(text[end + 1], 0), length)
    return found
