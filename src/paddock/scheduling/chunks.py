"""How the prompt tokens of a step are divided among the requests in prefill."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.fairness import FairQueue
from paddock.scheduling.request import Request
from paddock.scheduling.token_cost import TILE

# The probability of a prompt token takes a row as wide as the vocabulary: at most this many of them in a step.
_MAX_PROMPT_PROBS = 128
# A prompt of at most this many tokens is never cut for others.
_SHORT = 64
# After this many steps without a token for the oldest prompt, it goes first.
_PATIENCE = 3
# A prompt that is computed in more passes than this fills them without others.
_FEW_PASSES = 4
# A chunk after the first may take this many times the seconds that are left.
_OVERTIME = 1.25


class PrefillChunks:
    """The oldest prompt goes first, unless another one is much shorter: then half of the tokens go to the oldest, so
    that it makes progress, and the rest to the shortest. If there are too few tokens to divide, the two take turns.
    With several keys, the key that is next in the queue goes first and chunks are short.
    """

    def __init__(self, budget: StepBudget, queue: FairQueue[Request]) -> None:
        self._budget = budget
        self._queue = queue
        self._passed_over = 0
        """Steps since the oldest prompt got a token."""
        self.prompts_only = False
        """Whether the last divided step is for prompts only and generating requests skip it."""

    def divide(
        self, prompts: Sequence[Request], running: Sequence[Request], *, room: int, contended: bool, decodes: int
    ) -> list[tuple[Request, int]]:
        """Divide at most `room` tokens among the prompts. `contended`: other keys share the model, or may at any
        moment. `decodes`: so many generating requests can share the step.
        """
        # Generating requests that cannot share this step wait for its end too.
        answers = sum(request.is_generating for request in running)
        position = sum(request.computed for request in prompts) // len(prompts)
        quick = self._budget.seconds_for_prompts(answers, position, short=True)
        # With several prompts, one that fits into a short step is not delayed by big chunks of the others.
        short = len(prompts) > 1 and any(self._fits(request, quick) for request in prompts)
        seconds = quick if short else self._budget.seconds_for_prompts(answers, position)
        if (unknown := self._budget.room(answers)) is not None:
            room = min(room, unknown)
        skipped_before, self.prompts_only = self.prompts_only, False
        ranks = self._ranks(prompts, running)
        oldest = min(prompts, key=lambda request: request.arrival)
        first = [oldest] if self._passed_over >= _PATIENCE else [request for request in prompts if ranks[request] == 0]
        if contended:
            seconds = min(seconds, self._budget.brief_seconds_for_prompts(answers))
            whole = min(
                (request for request in first if not request.new_tokens),
                key=lambda request: request.max_chunk,
                default=None,
            )
            if whole is not None and (whole.max_chunk <= min(_SHORT, room) or self._fits(whole, quick)):
                # The only request of its key does not wait for other keys' answers either: they skip one step.
                self.prompts_only = not skipped_before and self._queue.slots(whole) == 1
                if self.prompts_only or not self._fits(whole, seconds):
                    # A short prompt is neither cut nor delayed by chunks of others.
                    prompts, first, seconds = [whole], [whole], math.inf
        senior = min(first, key=lambda request: request.arrival)
        others = sorted(prompts, key=lambda request: (ranks[request], *self._place(request, senior)))
        half = self._budget.chunk(senior.computed, seconds / 2, (room + 1) // 2, answers=decodes)
        if self._size_class(others[0], senior) >= 0 and ranks[senior] == ranks[others[0]]:
            # No other is much shorter: one after the other, the first token of each comes earlier on average.
            order = [(request, room) for request in (senior, *others)]
        elif half >= TILE and self._can_use_rest(others[0], senior, half, seconds, room, decodes):
            order = [(senior, half), *((request, room) for request in others)]
        else:
            # Parts of a tile would take as long as a whole one, and parts of a pass as long as a whole pass.
            order = [(request, room) for request in ([senior, *others] if self._passed_over else others)]
        share = self._give_out(order, seconds, room, brief=contended, decodes=decodes)
        if not contended:
            # Answers wait no longer for it than for a tile of one long prompt.
            allowed = self._budget.seconds_for_prompts(answers, position) if answers else math.inf
            self._fill_tile(share, allowed, room, decodes)
            if self._budget.fills_passes:
                self._round_to_passes(share, room, decodes)
        self._passed_over = 0 if share.get(oldest) else self._passed_over + 1
        return [(request, count) for request, count in share.items() if count > 0]

    def fill(self, prompts: Sequence[Request], *, room: int, decodes: int) -> list[tuple[Request, int]]:
        """As many of the oldest prompts as make a row cheap: nobody waits for a first token. Only the first one is cut,
        if it is longer than the step.
        """
        self.prompts_only, self._passed_over = False, 0
        first, *others = sorted(prompts, key=lambda request: (not request.new_tokens, request.arrival))
        left = min(self._budget.batch_rows - decodes, room)
        if (count := first.max_chunk) > left:
            seconds = self._budget.seconds_for_prompts(decodes, first.computed)
            count = max(left, self._budget.chunk(first.computed, seconds, min(count, room), answers=decodes))
        share = [(first, count)]
        left -= count
        for request in others:
            left -= request.max_chunk
            if left < 0:
                break
            share.append((request, request.max_chunk))
        return share

    def _size_class(self, request: Request, senior: Request) -> int:
        """Below 0: the request is much shorter than the senior."""
        if self._budget.has_equal_rows and senior.pending <= _FEW_PASSES * self._budget.pass_rows:
            # Coarse, because a prompt of few rows that is not beside the senior costs a pass.
            return int(math.log2(request.pending / senior.pending) / 2)
        return request.pending.bit_length() - senior.pending.bit_length()

    def _place(self, request: Request, senior: Request) -> tuple[int, int, int]:
        """Short prompts first. Of similar ones the nearest to the senior: adjacent streams are computed in one pass."""
        distance = abs(request.sequence - senior.sequence) if self._budget.has_equal_rows else 0
        return self._size_class(request, senior), distance, request.sequence

    def _can_use_rest(
        self, shortest: Request, senior: Request, half: int, seconds: float, room: int, decodes: int
    ) -> bool:
        """Whether the shortest prompt gets something beside so many tokens of the senior."""
        left = seconds - self._budget.seconds(senior.computed, half)
        most = min(shortest.max_chunk, room - half)
        count = self._budget.chunk(shortest.computed, left, most, answers=decodes)
        return count == shortest.max_chunk or self._budget.is_worth_cutting(count, begun=False)

    def _fits(self, request: Request, seconds: float) -> bool:
        return self._budget.chunk(request.computed, seconds, request.pending) == request.pending

    def _give_out(
        self, order: Sequence[tuple[Request, int]], left: float, room: int, *, brief: bool, decodes: int
    ) -> dict[Request, int]:
        """Give each request in turn as many tokens as it may have, while there are seconds and room left. The first one
        gets some in any case.
        """
        share = {request: 0 for request, _ in order}
        rows = _MAX_PROMPT_PROBS
        for request, limit in order:
            start = request.computed + share[request]
            rest = request.max_chunk - share[request]
            if request.needs_prompt_probs:
                rest = min(rest, rows)
            elif request.computed < request.furthest and request.prompt_probs >= 0:
                rest = min(rest, request.furthest - start)
            most = min(rest, limit, room)
            if most <= 0:
                continue
            count = self._budget.chunk(start, left, most, brief=brief, answers=0 if share[request] else decodes)
            cost = self._budget.seconds(start, count)
            if any(share.values()):
                if count < rest and not self._budget.is_worth_cutting(count, begun=share[request] > 0):
                    break  # the next ones are longer, or in streams farther away
                if cost > _OVERTIME * max(left, 0):
                    continue
            share[request] += count
            room -= count
            left -= cost
            if request.needs_prompt_probs:
                rows -= count
        return share

    def _fill_tile(self, share: dict[Request, int], seconds: float, room: int, decodes: int) -> None:
        """Add the ends of other prompts to a step with less than a tile, if they end earlier then: several users have
        short questions after one long text.
        """
        fuller = {request: count for request, count in share.items() if count}
        few = [(request.computed, count) for request, count in fuller.items()]
        tokens = sum(fuller.values())
        missing = self._budget.missing_rows(tokens + decodes)
        if not missing:
            return
        for request, count in share.items():
            whole = request.max_chunk
            if missing <= 0 or count or request.prompt_probs >= 0 or whole > min(_SHORT, room - tokens):
                continue
            fuller[request] = whole
            tokens += whole
            missing -= whole
        more = [(request.computed, count) for request, count in fuller.items()]
        if missing <= 0 and self._budget.is_better_together(few, more, seconds, answers=decodes):
            share.update(fuller)

    def _round_to_passes(self, share: dict[Request, int], room: int, decodes: int) -> None:
        """Change the tokens of a step in shared cells by a part of a pass, so that its passes are full."""
        tokens = sum(share.values())
        wanted = min(self._budget.whole_passes(tokens, decodes), room)
        # What is cut anyway is cut more, so that few prompts wait for the next step.
        for request in sorted(share, key=lambda request: (share[request] - request.pending, -request.arrival)):
            less = min(share[request], max(tokens - wanted, 0))
            share[request] -= less
            tokens -= less
        for request in share:
            more = min(request.max_chunk - share[request], wanted - tokens)
            if more > 0 and request.prompt_probs < 0:
                share[request] += more
                tokens += more

    def _ranks(self, prompts: Sequence[Request], running: Sequence[Request]) -> dict[Request, int]:
        """The rank of each prompt by its key's turn, from 0 on. A leader has the best rank of its followers."""
        standings = {request: self._queue.standing(request) for request in prompts}
        for follower in running:
            leader = follower.root_leader
            if leader in standings:
                standings[leader] = min(standings[leader], self._queue.standing(follower))
        order = sorted(set(standings.values()))
        return {request: order.index(standing) for request, standing in standings.items()}
