"""Tokens that a step computes beyond those that are needed: guesses at the next ones, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.cache import Cache
from paddock.scheduling.plan import Plan
from paddock.scheduling.speculation import Speculation, Tile
from paddock.types import CacheShape, Drafting, Sampled


class ExtraTokens:
    """They only make steps faster. What is not accepted is removed again, so the memory must allow that."""

    def __init__(
        self,
        shape: CacheShape,
        speculation: Speculation,
        budget: StepBudget,
        *,
        end_tokens: frozenset[int],
        n_ctx: int,
        draft_slots: int,
    ) -> None:
        self._shape = shape
        self._speculation = speculation
        self._budget = budget
        self._end_tokens = end_tokens
        self._n_ctx = n_ctx
        self._draft_slots = draft_slots
        self._rests = False
        """The engine had no cells for a step with extra tokens: the next one has none."""

    def add(self, plan: Plan, cache: Cache, *, room: int) -> None:
        """Add what the next step can use. It may have `room` tokens in all."""
        rests, self._rests = self._rests, False
        if not rests and not plan.exact:
            self._draft(plan, cache, room)
            self._pad(plan, room)

    def rest(self, plan: Plan) -> bool:
        """The engine had no cells for this step. If it has extra tokens, the next one has none. False: it has none."""
        self._rests = any(span.draft or span.padding for span in plan.spans)
        return self._rests

    def observe(self, plan: Plan, results: Sequence[Sampled | None], seconds: float) -> float:
        """The step took so long. Returns the seconds of its drafts."""
        return self._speculation.observe(plan, results, seconds)

    def _draft(self, plan: Plan, cache: Cache, room: int) -> None:
        """Allow drafts for the generating requests, and guess what can be guessed. The draft model is slow, so it is
        used for few requests only, and while no prompt waits.
        """
        if not plan.decodes or not self._shape.most_drafted:
            return
        with_model = len(plan.spans) == plan.decodes <= self._draft_slots
        allow_drafts(plan, room=room, n_ctx=self._n_ctx, most=self._shape.most_drafted, with_model=with_model)
        self._speculation.propose(plan, cache, self._end_tokens, self._draft_tile(plan))
        for span in plan.spans:
            if span.draft and min(span.draft) < 0:  # an image followed the same text
                span.draft = list(takewhile(lambda token: token >= 0, span.draft))

    def _draft_tile(self, plan: Plan) -> Tile | None:
        """What drafted tokens could fill, unless prompts fill it."""
        if len(plan.spans) > plan.decodes:
            return None
        tile = self._budget.draft_tile(plan.decodes, max(span.start for span in plan.spans))
        return tile and Tile(*tile)

    def _pad(self, plan: Plan, room: int) -> None:
        """Let the engine compute more tokens after a prompt chunk, if the step takes less time with them."""
        if any(span.draft or span.media for span in plan.spans):
            return
        padding = self._budget.padding(plan.chunks, plan.decodes)
        if 0 < padding <= room - sum(len(span.tokens) for span in plan.spans):
            first = plan.prompts[0]
            if first.start + len(first.tokens) + padding <= self._n_ctx:
                first.padding = padding


def allow_drafts(plan: Plan, *, room: int, n_ctx: int, most: int, with_model: bool) -> None:
    """Set how many tokens may be drafted for each generating request: at most `most`, at most an equal part of the
    `room` that the spans leave, and not past the end of the answer or the context. `with_model`: the draft model may be
    used.
    """
    drafted = [
        (span, request, request.draft)
        for span, request in zip(plan.spans, plan.requests, strict=True)
        if request.draft is not None and request.is_generating
    ]
    if not drafted:
        return
    each = min((room - sum(len(span.tokens) for span in plan.spans)) // len(drafted), most)
    for span, request, wanted in drafted:
        left = min(request.max_tokens - request.produced, n_ctx - len(request.tokens)) - 1
        n_max = min(wanted.n_max, each, left) if with_model and not request.media else 0
        lookup = min(wanted.lookup, each, left)
        if max(n_max, lookup) > 0:
            limits = msgspec.structs.replace(wanted, n_max=max(n_max, 0), lookup=max(lookup, 0))
            span.drafting = Drafting(request.tokens, limits)
