"""Drafts from grammars: the tokens of text that a schema or grammar allows in one way only.

A key of a schema, the rest of an enum value and the frame of a tool call are forced, but often not the tokens that they
consist of: the model may write `customer` or `cust` and `omer`. So they are drafts, which the sampler of the request
verifies, and the answer is the same as without them.
"""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLMatcher

from paddock.types import Span

# Guessed tokens in a row, before or after forced ones: `":` and ` "` after a key, `",` and ` "` before the next.
_MOST_GUESSED = 2
# How often in a row a token must have followed another to be guessed.
_LEAST_REPEATS = 2
# Forced bytes that no token is known for, because a longer token may begin with them, are at most a few.
_LONGEST_REST = 4


class Habits:
    """Which token followed in the same situation before: after forced bytes that may be the start of a longer token, or
    else after the same token. A schema allows spaces and line breaks at many places, and an answer uses them in one
    way.
    """

    def __init__(self) -> None:
        self._next: dict[bytes | int, tuple[int, int]] = {}
        self.last = -1
        """The newest token of the answer."""

    def record(self, forced: bytes, token: int) -> None:
        """A token was chosen where these bytes are forced."""
        if len(forced) <= _LONGEST_REST:
            situation = forced or self.last
            known, repeats = self._next.get(situation, (token, 0))
            self._next[situation] = (token, repeats + 1 if known == token else 1)
        self.last = token

    def guess(self, forced: bytes, last: int) -> int | None:
        """The token that is likely to follow. None: unknown."""
        token, repeats = self._next.get(forced or last, (-1, 0))
        return token if repeats >= (1 if forced else _LEAST_REPEATS) else None


def draft_forced(matcher: LLMatcher, habits: Habits, end_tokens: frozenset[int], most: int) -> list[int]:
    """At most so many next tokens. Empty if none of them is forced. The matcher is as before afterwards, unless this
    raises.
    """
    draft: list[int] = []
    is_forced = False
    guessed = 0
    while len(draft) < most:
        tokens = matcher.compute_ff_tokens()[: most - len(draft)]
        if tokens:
            is_forced, guessed = True, 0
        elif guessed < _MOST_GUESSED:
            guess = habits.guess(matcher.compute_ff_bytes(), draft[-1] if draft else habits.last)
            tokens = [] if guess is None else [guess]
            guessed += 1
        if not tokens or not end_tokens.isdisjoint(tokens):
            break
        consumed = matcher.try_consume_tokens(tokens)
        draft += tokens[:consumed]
        if consumed < len(tokens):
            break
    # A copy of the matcher would take time in proportion to the text.
    if draft and not matcher.rollback(len(draft)):
        raise RuntimeError(f"the grammar cannot be rolled back: {matcher.get_error()}")
    return draft if is_forced else []


def cut_drafts(spans: Iterable[Span]) -> None:
    """Cut drafts where no more tokens may be sampled in this step."""
    for span in spans:
        if span.draft and (limit := span.sampler.step_limit) is not None:
            span.draft = span.draft[: limit - 1]
            span.draft_source = span.draft_source if span.draft else None


def draft_by_grammar(spans: Iterable[Span]) -> None:
    """Draft what the grammar of a request forces, and cut other drafts before the first token that it forbids. A longer
    draft that begins with the forced tokens is kept.
    """
    for span in spans:
        if span.drafting is None or (grammar := span.sampler.grammar) is None:
            continue
        if span.draft:
            span.draft = span.draft[: grammar.allowed(span.draft)]
        forced = grammar.draft(span.drafting.params.lookup)
        if span.draft[: len(forced)] != forced:
            span.draft, span.draft_source = forced, "grammar"
        elif not span.draft:
            span.draft_source = None
