"""Random lengths of prompts and answers, and arrival times of requests."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator

_UNIFORM = re.compile(r"uniform:(\d+)-(\d+)")
_LOGNORMAL = re.compile(r"lognormal:(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)")


class Length:
    """A length in tokens: `512`, `uniform:100-800`, or `lognormal:400,0.6` (median and sigma)."""

    def __init__(self, written: int | str) -> None:
        self.written = str(written).replace(" ", "")
        self._sigma = 0.0
        if self.written.isdecimal():
            self._least = self._most = float(self.written)
        elif found := _UNIFORM.fullmatch(self.written):
            self._least, self._most = float(found[1]), float(found[2])
        elif found := _LOGNORMAL.fullmatch(self.written):
            self._least = self._most = float(found[1])
            self._sigma = float(found[2])
        else:
            raise ValueError(f"{written!r} is not a length such as 512, uniform:100-800 or lognormal:400,0.6")
        if not 1 <= self._least <= self._most:
            raise ValueError(f"{written!r}: a length is at least 1, and the end of a range is not less than its start")

    def __str__(self) -> str:
        return self.written

    def draw(self, rng: random.Random, scale: float = 1.0) -> int:
        drawn = rng.uniform(self._least, self._most) * math.exp(self._sigma * rng.gauss())
        return max(1, round(drawn * scale))


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Endless arrival times in seconds of a Poisson process with `rate` arrivals per second."""
    time = 0.0
    while True:
        time += rng.expovariate(rate)
        yield time
