"""Random numbers as a stateless hash (splitmix64) of a seed and the count of draws before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import Floats

_MASK = (1 << 64) - 1
_SEED, _COUNT = 0xD1342543DE82EF95, 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def uniform(seed: int, drawn: int) -> float:
    """The `drawn`-th number in [0, 1) of this seed."""
    z = (seed * _SEED + (drawn + 1) * _COUNT) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


class Uniforms:
    """`uniform` of several seeds at once."""

    def __init__(self, seeds: list[int]) -> None:
        self._seeds = np.array([seed * _SEED & _MASK for seed in seeds], np.uint64)

    def draw(self, which: list[int], drawn: list[int]) -> Floats:
        """A number for each of these seeds, by the places of the seeds."""
        counts: npt.NDArray[np.uint64] = np.array(drawn, np.uint64) + np.uint64(1)
        z = self._seeds[which] + counts * np.uint64(_COUNT)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
        numbers: Floats = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / float(1 << 53)
        return numbers
