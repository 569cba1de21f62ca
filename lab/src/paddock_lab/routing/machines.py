"""The speed of a replica: three measured numbers (docs/explanation/scaling.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

BLOCK_TOKENS = 64
"""Tokens of a block of the router."""


@dataclass(frozen=True)
class Machine:
    name: str
    slots: int
    cache_blocks: int
    """Blocks of prompts and answers that fit into the cache."""
    prefill_rate: float
    """Prompt tokens per second."""
    first: float
    """Seconds per token with one running answer."""
    growth: float
    """The exponent by which the time per token grows with the number of answers."""
    scale: int = 1
    """The number of replicas that this machine stands for."""

    def step(self, answers: int) -> float:
        """Seconds until each answer has one more token."""
        return self.first * math.pow(max(1.0, answers / self.scale), self.growth)

    def times(self, count: int) -> Machine:
        """A hypothetical machine as large and as fast as `count` of these: the upper bound for any policy."""
        return replace(
            self,
            slots=self.slots * count,
            cache_blocks=self.cache_blocks * count,
            prefill_rate=self.prefill_rate * count,
            scale=self.scale * count,
        )


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("two-cores", slots=8, cache_blocks=1024, prefill_rate=334, first=0.0073, growth=0.61),
        Machine("h200", slots=32, cache_blocks=8192, prefill_rate=9300, first=0.0045, growth=0.28),
    )
}
"""SmolLM2-135M Q8_0 with 1.5 GB for prefixes, and an 8B model in Q8_0 with 70 GB."""
