"""How long prompts and answers are, and when requests come. All is drawn from the chance that is given."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator

_UNIFORM = re.compile(r"uniform:(\d+)-(\d+)")
_LOGNORMAL = re.compile(r"lognormal:(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)")


class Length:
    """Of a text, in tokens: `512`, `uniform:100-800`, or `lognormal:400,0.6` (the median, and sigma)."""

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
            raise ValueError(f"{written!r} is no length such as 512, uniform:100-800 or lognormal:400,0.6")
        if not 1 <= self._least <= self._most:
            raise ValueError(f"{written!r}: a length is at least 1, and its range goes up")

    def __str__(self) -> str:
        return self.written

    def draw(self, chance: random.Random, scale: float = 1.0) -> int:
        drawn = chance.uniform(self._least, self._most) * math.exp(self._sigma * chance.gauss())
        return max(1, round(drawn * scale))


def poisson(rate: float, chance: random.Random) -> Iterator[float]:
    """Moments in seconds, without end: so many in a second on average, each whenever it likes."""
    moment = 0.0
    while True:
        moment += chance.expovariate(rate)
        yield moment
