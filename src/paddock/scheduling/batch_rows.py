"""How many rows a step for lines of batches has, while nobody else asks for anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from paddock.scheduling.token_cost import TILE

# With so many rows, more of them make none of them cheaper (docs/lab.md).
_MOST: Final = 4 * TILE
_FEWER, _MORE = 0.8, 1.25
# A step with less than this part of the allowed rows tells nothing about one with more.
_NEARLY = 0.75


@dataclass(slots=True)
class BatchRows:
    """On a CPU a row of a step costs less the more rows there are, by more than `PromptCost` knows: with four tiles two
    thirds of a row's time with one. So this does not estimate. It goes up while steps take less than `seconds`, and
    down when one takes longer.
    """

    seconds: float
    """An interactive request may have to wait for the end of such a step."""
    count: int = TILE
    """0: even one tile takes too long."""

    def observe(self, rows: int, seconds: float) -> None:
        """A step with so many rows took so long."""
        if seconds > self.seconds:
            if rows >= TILE:  # others are not made shorter by this limit
                fewer = min(self.count, int(_FEWER * rows))
                self.count = fewer if fewer >= TILE else 0
        elif rows >= _NEARLY * self.count and _MORE * seconds * max(TILE / rows, 1) < self.seconds:
            self.count = min(max(int(_MORE * self.count), TILE), _MOST)
