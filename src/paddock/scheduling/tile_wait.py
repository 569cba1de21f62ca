"""Short prompts of batches wait for one another: together they fill a tile, in which a row costs a fraction."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.request import Request


class TileWait:
    """Nobody waits for the first token of a line of a batch. But a slot without an answer makes the other answers more
    expensive, so prompts wait until that has cost as much as the tile saves, or until nothing else is computed.
    """

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._spent = 0.0
        """What waiting has cost since the last prompt."""

    def waits(self, prompts: Sequence[Request], answers: int) -> bool:
        """Whether a step with so many answers leaves these prompts out."""
        if prompts and answers and all(request.batch for request in prompts):
            chunks = [(request.computed, request.pending) for request in prompts]
            if self._spent < self._budget.saved_by_tile(chunks, answers):
                self._spent += self._budget.cost_of_free_slots(len(prompts), answers)
                return True
        self._spent = 0.0
        return False
