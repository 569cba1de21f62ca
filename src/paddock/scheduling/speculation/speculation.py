"""Which guesses are verified in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import heapify, heapreplace
from weakref import WeakValueDictionary

import msgspec

from paddock.scheduling.cache import Cache
from paddock.scheduling.plan import Plan
from paddock.scheduling.request import Request
from paddock.scheduling.slots import namespace_of
from paddock.scheduling.speculation.acceptance import Acceptance, ModelAcceptance
from paddock.scheduling.speculation.draft_price import DraftPrice, Switch, Tile
from paddock.scheduling.speculation.guesser import Guess, Guesser
from paddock.scheduling.speculation.ngrams import NgramIndex, PromptNgrams
from paddock.types import Drafting, DraftSource, Sampled, Span

# Each drafted token takes a row of logits as wide as the vocabulary: at most this many of them in a step.
_MOST_ROWS = 64
# Looking for guesses takes time for each answer. With many, so many steps after one in which none paid are without.
_ANSWERS_PER_REST, _LONGEST_REST = 8, 4


class Speculation:
    """Drafts by lookup, and permission for those of the engine: of a grammar or a draft model. They never change an
    answer: the engine samples every token as it would without them.
    """

    def __init__(self) -> None:
        self._acceptance = ModelAcceptance()
        self._prompts: WeakValueDictionary[int, PromptNgrams] = WeakValueDictionary()
        """By the id of the request, for its other answers."""
        switch = Switch()
        self.price = DraftPrice(switch)
        # Only a draft tells how good the draft model is. For one token it may have to read many before.
        self.model_price = DraftPrice(switch, least_tried=0.0, most_cost=64.0)
        self._resting = 0
        """For so many steps more, guesses that have to pay are not looked for."""

    def propose(self, plan: Plan, cache: Cache, end_tokens: frozenset[int], tile: Tile | None = None) -> None:
        """Set the drafts of a step, within what `Span.drafting` allows. `tile`: what fills a tile in this step."""
        self.price.tile = tile or Tile(0, 0.0)
        allowed = [
            (span, request, span.drafting.params)
            for span, request in zip(plan.spans, plan.requests, strict=True)
            if span.drafting is not None and span.drafting.params.lookup
        ]
        priced: list[tuple[Span, Guess]] = []
        room = _MOST_ROWS
        rests = self._resting > 0
        self._resting -= rests
        for span, request, params in allowed:
            if rests and params.priced:
                continue
            guesser = self._guesser(request, cache)
            guesser.catch_up()
            most = min(params.lookup, max(_MOST_ROWS // len(allowed), 1), room)
            guess = guesser.guess(most, end_tokens, priced=params.priced) if most > 0 else None
            if guess is None or len(guess.tokens) < params.n_min:
                continue
            if params.priced:
                priced.append((span, guess))
            else:
                _set(span, guess, len(guess.tokens))
                room -= len(guess.tokens)
        if not rests and not (priced and self._buy(plan.decodes, priced)):
            self._resting = min(plan.decodes // _ANSWERS_PER_REST, _LONGEST_REST)
        constrained = [span for span, request, params in allowed if params.priced and request.is_constrained]
        if constrained:
            self._limit_forced(plan.decodes, constrained)
        self._limit_model(plan)

    def observe(self, plan: Plan, results: Sequence[Sampled | None], seconds: float) -> float:
        """A step took so long. Returns how much of this was for drafts, as far as known."""
        drafts = [result for result in results if result is not None and result.drafted]
        known = self._observe(plan, results, drafts, seconds)
        for price in (self.price, self.model_price):
            price.follow(drafted=bool(drafts))
        return known

    def _observe(
        self, plan: Plan, results: Sequence[Sampled | None], drafts: Sequence[Sampled], seconds: float
    ) -> float:
        for result in drafts:
            if result.draft_source in ("grammar", "model"):
                self._acceptance.observe_run(result.draft_source, result.drafted, len(result.more))
        answers, drafted = plan.decodes, sum(result.drafted for result in drafts)
        accepted = sum(len(result.more) for result in drafts)
        if len(plan.spans) > answers:
            self.price.interrupt(answers)
            self.model_price.interrupt(answers)
            return min(self.price.draft_seconds(answers, drafted), seconds / 2) if drafted else 0.0
        if any(map(_asks_model, plan.spans, results)):
            # Beside other drafts, nobody knows which of them took the time.
            if not drafted:
                self.model_price.observe_vain(answers, seconds)
            elif all(result.draft_source == "model" for result in drafts):
                self.model_price.observe(answers, drafted, accepted, seconds)
            return seconds
        self.price.observe(answers, drafted, accepted, seconds)
        if not drafted:
            self.model_price.observe(answers, 0, 0, seconds)
        return max(seconds - self.price.plain(answers), 0.0) if drafted else 0.0

    def _buy(self, answers: int, guesses: list[tuple[Span, Guess]]) -> bool:
        """Verify the most likely tokens of all guesses, as many as pay. False: none."""
        chances: list[float] = []
        order: list[int] = []
        heap = [(-guess.chances[0], index, 0) for index, (_, guess) in enumerate(guesses)]
        heapify(heap)
        while heap and len(order) < _MOST_ROWS:
            chance, index, place = heap[0]
            chances.append(-chance)
            order.append(index)
            rest = guesses[index][1].chances[place + 1 : place + 2]
            # A guess that has ended sorts behind all others.
            heapreplace(heap, (-rest[0], index, place + 1) if rest else (1.0, index, place + 1))
            if heap[0][0] > 0:
                break
        bought = order[: self.price.count(answers, chances)]
        for index in set(bought):
            span, guess = guesses[index]
            _set(span, guess, bought.count(index))
        return bool(bought)

    def _limit_forced(self, answers: int, spans: list[Span]) -> None:
        """Grammars draft later, in the engine, so it is not known yet how many tokens they force. Let them draft as
        many as would pay. In a draft that is made already, forced tokens cost nothing more.
        """
        most = self._affordable("grammar", self.price, answers, [_MOST_ROWS // len(spans)] * len(spans))
        for span, count in zip(spans, most, strict=True):
            assert span.drafting is not None, "the caller checked"
            _limit(span, lookup=min(span.drafting.params.lookup, max(count, len(span.draft))))

    def _limit_model(self, plan: Plan) -> None:
        """The draft model drafts in the engine too, for the requests without another draft: as many tokens as would
        pay.
        """
        asked = [
            (span, span.drafting.params, 0 if span.draft else span.drafting.params.n_max)
            for span in plan.spans
            if span.drafting is not None and span.drafting.params.n_max
        ]
        if any(params.priced for _, params, _ in asked):
            most = self._affordable("model", self.model_price, plan.decodes, [n_max for *_, n_max in asked])
            for (span, params, _), count in zip(asked, most, strict=True):
                if params.priced:
                    _limit(span, n_max=count, n_min=min(params.n_min, count))

    def _affordable(self, source: DraftSource, price: DraftPrice, answers: int, most: Sequence[int]) -> list[int]:
        """How many tokens of this source pay in each span, of at most so many."""
        chance = self._acceptance.chance(source)
        places = [(place, index) for index, count in enumerate(most) for place in range(count)]
        places.sort()
        bought = places[: price.count(answers, [chance ** (place + 1) for place, _ in places])]
        counts = Counter(index for _, index in bought)
        return [counts[index] for index in range(len(most))]

    def _guesser(self, request: Request, cache: Cache) -> Guesser:
        """The one of this request. After a context shift it starts anew."""
        guesser: Guesser | None = request.guesser
        if guesser is None or guesser.tokens is not request.tokens:
            guesser = request.guesser = self._new_guesser(request, cache)
        return guesser

    def _new_guesser(self, request: Request, cache: Cache) -> Guesser:
        prompt = self._prompts.get(request.id)
        if prompt is None or prompt.size != request.prompt_size or request.is_shifted:
            prompt = PromptNgrams(request.tokens[: request.prompt_size])
            if not request.is_shifted:
                self._prompts[request.id] = prompt
        index = NgramIndex(request.tokens, prompt)
        # Only within its namespace: the answers of other tenants must not show, not even by the time that a step takes.
        shares = request.namespace is not None and not request.is_shifted
        look_up = partial(cache.nearest, namespace_of(request)) if shares else None
        return Guesser(request.tokens, index, Acceptance(self._acceptance), look_up)


def _set(span: Span, guess: Guess, count: int) -> None:
    span.draft, span.draft_source = list(guess.tokens[:count]), guess.source


def _limit(span: Span, **limits: int) -> None:
    assert span.drafting is not None, "it may draft"
    span.drafting = Drafting(span.drafting.tokens, msgspec.structs.replace(span.drafting.params, **limits))


def _asks_model(span: Span, result: Sampled | None) -> bool:
    """Whether the draft model was asked for a draft: where there was no other one."""
    is_allowed = span.drafting is not None and span.drafting.params.n_max > 0
    return is_allowed and result is not None and result.draft_source in (None, "model")
