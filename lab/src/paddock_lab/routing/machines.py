"""How fast a replica is: three numbers, which docs/explanation/scaling.md takes from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

BLOCK_TOKENS = 64
"""Of a router's block."""


@dataclass(frozen=True)
class Machine:
    name: str
    slots: int
    cache_blocks: int
    """Of prompts and answers that it keeps."""
    reads: float
    """Prompt tokens in a second."""
    first: float
    """Seconds that the next token takes when one answer is being written …"""
    growth: float
    """… which the number of answers raised to this power multiplies."""
    scale: int = 1
    """As if so many of them were one."""

    def step(self, answers: int) -> float:
        """Seconds until all answers have one token more."""
        return self.first * math.pow(max(1.0, answers / self.scale), self.growth)

    def times(self, count: int) -> Machine:
        """One that is as large and as fast as so many together, which nobody has: no pool can do better."""
        return replace(
            self,
            slots=self.slots * count,
            cache_blocks=self.cache_blocks * count,
            reads=self.reads * count,
            scale=self.scale * count,
        )


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("two-cores", slots=8, cache_blocks=1024, reads=334, first=0.0073, growth=0.61),
        Machine("h200", slots=32, cache_blocks=8192, reads=9300, first=0.0045, growth=0.28),
    )
}
"""SmolLM2-135M Q8_0 with 1.5 GB for prefixes, and an 8B model in Q8_0 with 70 GB for them."""
