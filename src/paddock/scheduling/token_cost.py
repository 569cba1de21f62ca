"""What tokens cost, measured: more at later positions, and less for prompt chunks of whole tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from paddock.scheduling.fit import Fit

TILE: Final = 64
"""CPU attention computes this many rows of a sequence together, or of a step if all sequences share cells. It computes
fewer rows one by one, which took five times as long on x86 (docs/lab.md).
"""
# Positions are counted in thousands.
_SCALE = 1000.0
# A step of at least so many rows is padded to a tile if that takes at most this part of the time. Fewer rows took less
# time on most machines (docs/lab.md), and the prices are not exact.
_LEAST_PADDED, _PADDED = 16, 0.9


class PromptCost:
    """Fits `seconds / tokens = base + slope * mean position`, with one slope for chunks of at least a tile and one for
    smaller chunks.
    """

    def __init__(self, *, unified: bool = False, pads: bool = False) -> None:
        self._unified = unified
        """Whether a tile may hold rows of several sequences, prompts and answers."""
        self._pads = pads
        """Whether steps may be padded to a tile."""
        self._fit = Fit(2)

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return self._fit.observed > 0

    @property
    def knows_tiles(self) -> bool:
        return self._fit.has_seen(1)

    def observe(self, chunks: Sequence[tuple[int, int]], seconds: float, *, answers: int = 0) -> None:
        """These chunks, each a start and a count, took so long together, in a step with so many answers."""
        tokens = sum(count for _, count in chunks)
        tiled = sum(_positions(*chunk) for chunk in chunks if self._is_tiled(chunk, tokens + answers))
        rows = sum(_positions(*chunk) for chunk in chunks) - tiled
        # For each token, so that a short step counts as much as a long one.
        self._fit.observe([tiled / tokens / _SCALE, rows / tokens / _SCALE], seconds / tokens)

    def seconds(self, start: int, count: int) -> float:
        """What a chunk would take; 0 if nothing is known."""
        return self.seconds_together([(start, count)])

    def seconds_together(self, chunks: Sequence[tuple[int, int]], *, answers: int = 0) -> float:
        """What chunks of several sequences would take in one step, beside so many answers."""
        seconds, padding = self._unpadded(chunks, answers), self.padding(chunks, answers)
        return min(seconds, self._unpadded(pad(chunks, padding), answers)) if padding else seconds

    def padding(self, chunks: Sequence[tuple[int, int]], answers: int) -> int:
        """With how many more rows these chunks take less time beside so many answers. 0: with none."""
        if not self._pads or not chunks or (len(chunks) > 1 and not self._unified):
            return 0
        rows = sum(count for _, count in chunks)
        # libllama computes the first row of a stream together with the answers of others.
        missing = TILE - rows - answers if self._unified else TILE - rows + min(answers, 1)
        if not _LEAST_PADDED <= rows < TILE or missing <= 0:
            return 0
        padded = self._unpadded(pad(chunks, missing), answers)
        return missing if padded < _PADDED * self._unpadded(chunks, answers) else 0

    def _unpadded(self, chunks: Sequence[tuple[int, int]], answers: int) -> float:
        rows, total = sum(count for _, count in chunks) + answers, 0.0
        for chunk in chunks:
            base, slope = self._base_and_slope(tiled=self._is_tiled(chunk, rows))
            total += base * chunk[1] + slope * _positions(*chunk)
        return total

    def _is_tiled(self, chunk: tuple[int, int], rows: int) -> bool:
        """Whether a chunk in a step of so many rows is computed in tiles."""
        return (rows if self._unified else chunk[1]) >= TILE

    @property
    def seconds_per_cell(self) -> float:
        """How much longer one token takes for each cell that attention reads."""
        return self._base_and_slope(tiled=True)[1]

    def affordable(self, start: int, seconds: float, *, tiled: bool) -> int:
        """How many tokens from this position on take so long."""
        base, slope = self._base_and_slope(tiled=tiled)
        each = base + slope * start
        if seconds <= 0 or each + slope <= 0:
            return 0
        # base * n + slope * (start * n + n² / 2) = seconds, in a form that is exact also if the slope is tiny
        return int(2 * seconds / (each + math.sqrt(each * each + 2 * slope * seconds)))

    def _base_and_slope(self, *, tiled: bool) -> tuple[float, float]:
        feature, other = (1, 2) if tiled else (2, 1)
        # What was never measured is assumed to cost as much as the other.
        return self._fit.costs[0], self._fit.costs[feature if self._fit.has_seen(feature) else other] / _SCALE


class GenerationCost:
    """Fits the seconds of a step that only generates, by the number of answers. Their positions change slowly, so the
    last steps tell enough about them.
    """

    def __init__(self) -> None:
        self._fit = Fit(1)

    def observe(self, answers: int, seconds: float) -> None:
        self._fit.observe([answers], seconds)

    def seconds(self, answers: int) -> float:
        """What a step would take; 0 if nothing is known."""
        return self._fit.predict([answers]) if answers else 0.0


def pad(chunks: Sequence[tuple[int, int]], padding: int) -> list[tuple[int, int]]:
    """The same chunks with so many rows more at the end of the first one."""
    (start, count), *others = chunks
    return [(start, count + padding), *others]


def _positions(start: int, count: int) -> float:
    """The sum of the positions of a chunk."""
    return count * (start + count / 2)
