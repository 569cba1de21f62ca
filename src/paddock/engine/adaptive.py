"""Adaptive-p, as llama.cpp defines it: prefer tokens whose probability is near a target."""

from __future__ import annotations

import numpy as np

from paddock.engine.candidates import Floats
from paddock.types import SamplingParams

_WIDTH = 0.3
_SHARPNESS = 10.0
_LARGEST_DECAY = 0.99


class AdaptiveTarget:
    """The state of the sampler: a moving average of the probabilities that the chosen tokens had.

    If the average is above the target, the next token is chosen below it, and the other way round.
    """

    def __init__(self, target: float, decay: float) -> None:
        self._target = min(target, 1.0)
        self._decay = min(max(decay, 0.0), _LARGEST_DECAY)
        # As if all earlier tokens had met the target.
        self._total = 1 / (1 - self._decay)
        self._sum = self._target * self._total
        self._pending: float | None = None

    @classmethod
    def of(cls, params: SamplingParams) -> AdaptiveTarget | None:
        """None if the parameters do not use it."""
        if "adaptive_p" not in params.samplers or params.adaptive_target < 0 or params.mirostat:
            return None
        return cls(params.adaptive_target, params.adaptive_decay)

    def weigh(self, probabilities: Floats) -> Floats:
        """The probabilities to draw from: the closer to the target, the higher."""
        self._accept()
        target = min(max(2 * self._target - self._sum / self._total, 0.0), 1.0)
        distance = np.abs(probabilities - target) / _WIDTH
        logits = -_SHARPNESS * distance * distance / (1 + distance)
        weights = np.where(probabilities > 0, np.exp(logits - logits.max()), 0.0)
        normalized: Floats = weights / weights.sum()
        return normalized

    def choose(self, probability: float) -> None:
        """Remember the probability that the chosen token had before `weigh`."""
        self._pending = probability

    def reject(self) -> None:
        """The chosen token was replaced by another one, so that it does not count."""
        self._pending = None

    def _accept(self) -> None:
        if self._pending is not None:
            self._sum = self._pending + self._decay * self._sum
            self._total = 1 + self._decay * self._total
            self._pending = None
