"""How a step's prompt tokens are shared out among those who wait for their prompts to be read."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.fairness import FairQueue
from paddock.scheduling.request import Request

# To tell how likely a prompt's token was takes a row as wide as the vocabulary: no more of them than this in a step.
_JUDGED_AT_ONCE = 128
# So short a prompt is never cut for the sake of others, however long they have to wait for it.
_SHORT = 64
# After so many steps without a token for the oldest prompt it goes first, whosever turn it would be.
_PATIENCE = 3


class Chunks:
    """Half to the oldest, so that it gets done, the rest to the shortest, so that a question need not wait for a book.
    Among several keys, those of the key whose turn it is go first, and no chunk takes long.
    """

    def __init__(self, budget: StepBudget, queue: FairQueue[Request]) -> None:
        self._budget = budget
        self._queue = queue
        self._passed_over = 0
        """Steps since the oldest prompt got something."""
        self.alone = False
        """Whether the step that was shared out last is for prompts only, so that they are read the sooner."""

    def share_out(
        self, prompts: Sequence[Request], running: Sequence[Request], *, decodes: int, room: int, contended: bool
    ) -> list[tuple[Request, int]]:
        """Who of them gets how many tokens, where there is room for so many beside as many answers. `contended`: others
        share the model than those whose prompts these are, or may at any moment.
        """
        # Several prompts at once: those that can be done in a moment are not held up by the others' big chunks.
        quick = self._budget.prompt_tokens(decodes=decodes, short=True)
        short = len(prompts) > 1 and min(request.pending for request in prompts) <= quick
        # Answers that cannot share this step wait for its end as those do that can.
        answering = sum(request.generating for request in running)
        left = min(quick if short else self._budget.prompt_tokens(decodes=answering), room)
        alone_before, self.alone = self.alone, False
        turns = self._turns(prompts, running)
        oldest = min(prompts, key=lambda request: request.arrival)
        first = [oldest] if self._passed_over >= _PATIENCE else [request for request in prompts if turns[request] == 0]
        if contended:
            left = min(left, self._budget.brief_tokens())
            whole = min(
                (request for request in first if not request.stay), key=lambda request: request.reach, default=None
            )
            if whole is not None and whole.reach <= min(max(quick, _SHORT), room):
                # Who has nothing else here does not wait for others' answers either, which are put off for a moment.
                self.alone = not alone_before and self._queue.places(whole) == 1
                if self.alone or left < whole.reach:
                    # A short prompt is not cut, nor held up by parts of others.
                    prompts, first, left = [whole], [whole], whole.reach
        half = (min(first, key=lambda request: request.arrival), (left + 1) // 2)
        # Of about the same length, they go by sequence: streams next to each other are computed together.
        others = sorted(prompts, key=lambda request: (turns[request], request.pending.bit_length(), request.sequence))
        share = _shares([half, *((request, left) for request in others)], left)
        self._passed_over = 0 if share.get(oldest) else self._passed_over + 1
        return [(request, count) for request, count in share.items() if count > 0]

    def _turns(self, prompts: Sequence[Request], running: Sequence[Request]) -> dict[Request, int]:
        """Which key's turn it is, from 0 on. Who waits for what another computes lends it their turn."""
        standings = {request: self._queue.standing(request) for request in prompts}
        for follower in running:
            leader = follower.computing
            if leader in standings:
                standings[leader] = min(standings[leader], self._queue.standing(follower))
        order = sorted(set(standings.values()))
        return {request: order.index(standing) for request, standing in standings.items()}


def _shares(wanting: Sequence[tuple[Request, int]], left: int) -> dict[Request, int]:
    """One after another gets as many as it wants, as long as there are any left."""
    share = {request: 0 for request, _ in wanting}
    judged = _JUDGED_AT_ONCE
    for request, most in wanting:
        more = min(request.reach - share[request], most, left)
        if request.is_judged:
            more = min(more, judged)
            judged -= more
        elif request.computed < request.judged and request.prompt_probs >= 0:
            more = min(more, request.judged - request.computed - share[request])
        share[request] += more
        left -= more
    return share
