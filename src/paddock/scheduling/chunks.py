"""How the prompt tokens of a step are divided among the requests in prefill."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.fairness import FairQueue
from paddock.scheduling.request import Request

# The probability of a prompt token takes a row as wide as the vocabulary: at most this many of them in a step.
_MAX_PROMPT_PROBS = 128
# A prompt of at most this many tokens is never cut for others.
_SHORT = 64
# After this many steps without a token for the oldest prompt, it goes first.
_PATIENCE = 3


class PrefillChunks:
    """Half of the tokens go to the oldest prompt, so that it makes progress, the rest to the shortest, so that a short
    prompt need not wait for a long one. With several keys, the key that is next in the queue goes first and chunks are
    short.
    """

    def __init__(self, budget: StepBudget, queue: FairQueue[Request]) -> None:
        self._budget = budget
        self._queue = queue
        self._passed_over = 0
        """Steps since the oldest prompt got a token."""
        self.prompts_only = False
        """Whether the last divided step is for prompts only and generating requests skip it."""

    def divide(
        self, prompts: Sequence[Request], running: Sequence[Request], *, decodes: int, room: int, contended: bool
    ) -> list[tuple[Request, int]]:
        """Divide at most `room` tokens among the prompts, beside `decodes` generating requests. `contended`: other keys
        share the model, or may at any moment.
        """
        # With several prompts, one that fits into a short step is not delayed by big chunks of the others.
        quick = self._budget.prompt_tokens(decodes=decodes, short=True)
        short = len(prompts) > 1 and min(request.pending for request in prompts) <= quick
        # Generating requests that cannot share this step wait for its end too.
        answering = sum(request.is_generating for request in running)
        left = min(quick if short else self._budget.prompt_tokens(decodes=answering), room)
        skipped_before, self.prompts_only = self.prompts_only, False
        ranks = self._ranks(prompts, running)
        oldest = min(prompts, key=lambda request: request.arrival)
        first = [oldest] if self._passed_over >= _PATIENCE else [request for request in prompts if ranks[request] == 0]
        if contended:
            left = min(left, self._budget.brief_tokens())
            whole = min(
                (request for request in first if not request.new_tokens),
                key=lambda request: request.max_chunk,
                default=None,
            )
            if whole is not None and whole.max_chunk <= min(max(quick, _SHORT), room):
                # The only request of its key does not wait for other keys' answers either: they skip one step.
                self.prompts_only = not skipped_before and self._queue.slots(whole) == 1
                if self.prompts_only or left < whole.max_chunk:
                    # A short prompt is neither cut nor delayed by chunks of others.
                    prompts, first, left = [whole], [whole], whole.max_chunk
        half = (min(first, key=lambda request: request.arrival), (left + 1) // 2)
        # Prompts of similar length go by sequence: adjacent streams are computed in one pass.
        others = sorted(prompts, key=lambda request: (ranks[request], request.pending.bit_length(), request.sequence))
        share = _give_out([half, *((request, left) for request in others)], left)
        self._passed_over = 0 if share.get(oldest) else self._passed_over + 1
        return [(request, count) for request, count in share.items() if count > 0]

    def _ranks(self, prompts: Sequence[Request], running: Sequence[Request]) -> dict[Request, int]:
        """The rank of each prompt by its key's turn, from 0 on. A leader has the best rank of its followers."""
        standings = {request: self._queue.standing(request) for request in prompts}
        for follower in running:
            leader = follower.root_leader
            if leader in standings:
                standings[leader] = min(standings[leader], self._queue.standing(follower))
        order = sorted(set(standings.values()))
        return {request: order.index(standing) for request, standing in standings.items()}


def _give_out(wanting: Sequence[tuple[Request, int]], left: int) -> dict[Request, int]:
    """Give each request in turn as many tokens as it may have, while there are any left."""
    share = {request: 0 for request, _ in wanting}
    rows = _MAX_PROMPT_PROBS
    for request, most in wanting:
        more = min(request.max_chunk - share[request], most, left)
        if request.needs_prompt_probs:
            more = min(more, rows)
            rows -= more
        elif request.computed < request.furthest and request.prompt_probs >= 0:
            more = min(more, request.furthest - request.computed - share[request])
        share[request] += more
        left -= more
    return share
