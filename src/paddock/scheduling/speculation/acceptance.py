"""How likely a guess is right: learned from the guesses before it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import repeat
from typing import Final

from paddock.types import DraftSource

# Guesses are counted by the number of tokens before them that agree with their source: from so many on.
_LENGTHS: Final = (0, 2, 3, 4, 6, 9, 16, 32)
# What is assumed at first, with the weight of this many guesses.
_PRIOR: Final = (0.3, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95)
_PRIOR_WEIGHT = 4.0
# The model's guesses count as much as so many of the request itself.
_MODEL_WEIGHT = 3.0
# Old guesses are forgotten: about this many count.
_MODEL_MEMORY, _REQUEST_MEMORY = 256, 24


class _Rates:
    """Hits and misses by source and length."""

    def __init__(self, memory: int) -> None:
        self._keep = 1 - 1 / memory
        self._counts: dict[tuple[DraftSource, int], tuple[float, float]] = {}

    def observe(self, source: DraftSource, bucket: int, *, is_right: bool) -> None:
        right, all = self._counts.get((source, bucket), (0.0, 0.0))
        self._counts[source, bucket] = right * self._keep + is_right, all * self._keep + 1

    def rate(self, source: DraftSource, bucket: int, prior: float, weight: float) -> float:
        right, all = self._counts.get((source, bucket), (0.0, 0.0))
        return (right + prior * weight) / (all + weight)


class ModelAcceptance:
    """The guesses for all requests of a model."""

    def __init__(self) -> None:
        self._rates = _Rates(_MODEL_MEMORY)

    def observe(self, source: DraftSource, bucket: int, *, is_right: bool) -> None:
        self._rates.observe(source, bucket, is_right=is_right)

    def rate(self, source: DraftSource, bucket: int) -> float:
        return self._rates.rate(source, bucket, _PRIOR[bucket], _PRIOR_WEIGHT)

    def observe_run(self, source: DraftSource, drafted: int, right: int) -> None:
        """Tokens that do not depend on the text before them were verified, up to the first wrong one."""
        for place in range(min(right + 1, drafted)):
            self.observe(source, len(_LENGTHS) - 1, is_right=place < right)

    def chance(self, source: DraftSource) -> float:
        """That one of these tokens is right."""
        return self.rate(source, len(_LENGTHS) - 1)


class Acceptance:
    """The guesses for one request. What it has too few of is estimated by those for others."""

    def __init__(self, model: ModelAcceptance) -> None:
        self._model = model
        self._own = _Rates(_REQUEST_MEMORY)

    def observe(self, source: DraftSource, length: int, *, is_right: bool) -> None:
        """A guess after `length` tokens that agreed. It is known whether it was right, also if it was not verified."""
        bucket = bisect_right(_LENGTHS, length) - 1
        self._own.observe(source, bucket, is_right=is_right)
        self._model.observe(source, bucket, is_right=is_right)

    def probabilities(self, source: DraftSource, length: int) -> Iterator[float]:
        """That the next token of this source is right, after `length` tokens that agreed, and then of each token after
        it, if those before it are right.
        """
        for bucket in range(bisect_right(_LENGTHS, length) - 1, len(_LENGTHS)):
            right = self._own.rate(source, bucket, self._model.rate(source, bucket), _MODEL_WEIGHT)
            if bucket + 1 == len(_LENGTHS):
                yield from repeat(right)
            yield from repeat(right, _LENGTHS[bucket + 1] - max(length, _LENGTHS[bucket]))
