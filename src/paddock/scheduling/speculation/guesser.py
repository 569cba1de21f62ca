"""The guesses for one request: which tokens probably come next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paddock.scheduling.speculation.acceptance import Acceptance
from paddock.scheduling.speculation.ngrams import LONGEST_MATCH, NgramIndex
from paddock.types import DraftSource, Nearest

# After a wrong guess in a match of at least this length, one token is assumed to be replaced.
_WORTH_RESUMING = 8
# So many tokens of another answer are looked up at once.
_FOLLOWING = 64
# Tokens that are less likely than this are never worth their price.
_LEAST_CHANCE = 0.05
# Without a price: shorter matches are no guess, and it ends before a token that is less likely than this.
_LEAST_UNPRICED, _LEAST_UNPRICED_CHANCE = 3, 0.25


class Guess(NamedTuple):
    """The next tokens, and the probability that all up to each one are right."""

    source: DraftSource
    tokens: Sequence[int]
    chances: Sequence[float]


class Guesser:
    """Follows the text of a request. Every new token tells whether the guess for it was right, also if the guess was
    not verified. So nothing must be computed to learn whether guessing would pay.
    """

    def __init__(
        self,
        tokens: list[int],
        index: NgramIndex,
        acceptance: Acceptance,
        look_up: Callable[[list[int], int], Nearest] | None,
    ) -> None:
        self.tokens = tokens
        """The request's own list, which only grows."""
        self._index = index
        self._acceptance = acceptance
        self._look_up = look_up
        """What followed these tokens in another answer. None: there is none, or no longer."""
        self._seen = len(tokens)
        self._place: int | None = None
        """The position in the text of the guess for the next token."""
        self._matched = 0
        """How many tokens before it agree."""
        self._others: list[int] = []
        """What follows in another answer."""
        self._followed = 0
        """How many tokens agreed with other answers."""
        self._find()
        self._look_up_others()

    def catch_up(self) -> None:
        """Compare the guesses with the new tokens of the text."""
        for place in range(self._seen, len(self.tokens)):
            self._compare(place, self.tokens[place])
        if self._seen < len(self.tokens):
            self._seen = len(self.tokens)
            self._index.extend()
            if self._place is None or self._matched < 2:
                self._find()
            if not self._others:
                self._look_up_others()

    def guess(self, most: int, end_tokens: frozenset[int], *, priced: bool) -> Guess | None:
        """The next tokens, at most so many. Ends before a token that ends the answer."""
        found: list[Guess] = []
        if self._others:
            found.append(self._guess("tree", self._followed, self._others[:most], end_tokens, priced=priced))
        if self._place is not None and (priced or self._matched >= _LEAST_UNPRICED):
            found.append(self._guess("ngram", self._matched, self._repeated(most), end_tokens, priced=priced))
        best = max(found, key=lambda guess: sum(guess.chances), default=None)
        return best if best is not None and best.tokens else None

    def _guess(
        self, source: DraftSource, matched: int, tokens: list[int], end_tokens: frozenset[int], *, priced: bool
    ) -> Guess:
        least = _LEAST_CHANCE if priced else _LEAST_UNPRICED_CHANCE
        chances: list[float] = []
        chance = 1.0
        for token, right in zip(tokens, self._acceptance.probabilities(source, matched), strict=False):
            chance *= right
            if token in end_tokens or (chance < least and (chances or priced)):
                break
            chances.append(chance)
        return Guess(source, tokens[: len(chances)], chances)

    def _repeated(self, count: int) -> list[int]:
        """What followed at the place. Where the text ends, it is assumed to go on repeating itself."""
        assert self._place is not None, "the caller checked"
        found = self.tokens[self._place : self._place + count]
        period = len(self.tokens) - self._place
        while len(found) < count:
            found.append(found[-period])
        return found

    def _compare(self, place: int, token: int) -> None:
        if self._place is not None:
            is_right = self.tokens[self._place] == token
            self._acceptance.observe("ngram", self._matched, is_right=is_right)
            if is_right:
                self._place, self._matched = self._place + 1, min(self._matched + 1, LONGEST_MATCH)
            elif self._matched >= _WORTH_RESUMING and self._place + 1 < place:
                self._place, self._matched = self._place + 1, 0
            else:
                self._place = None
        if self._others:
            is_right = self._others[0] == token
            self._acceptance.observe("tree", self._followed, is_right=is_right)
            self._followed += is_right
            self._others = self._others[1:] if is_right else []

    def _find(self) -> None:
        """Look for another place, unless a replaced token is being skipped and nothing else is known."""
        found = self._index.find()
        if found is not None:
            self._place, self._matched = found

    def _look_up_others(self) -> None:
        """A text that differs from all others once will always differ."""
        if self._look_up is not None:
            nearest = self._look_up(self.tokens, _FOLLOWING)
            self._others = list(nearest.following) if nearest.length == len(self.tokens) else []
            if not self._others:
                self._look_up = None
