"""The plan of one step of an engine, and what comes of it."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.errors import PaddockError
from paddock.types.answers import TokenLogprobs
from paddock.types.sampling import DraftParams


class Drafting(msgspec.Struct, frozen=True):
    """That an answer may be guessed ahead, and how far."""

    tokens: list[int]
    """Prompt and answer so far. Not a copy: the request's own, to which tokens are only ever added."""
    params: DraftParams
    """As its `n_max`, no more than there is room for."""


class Span(msgspec.Struct):
    """Consecutive tokens of one sequence to be decoded in one step.

    `sampler` set means: choose the token that follows the last one, with this request's own sampler.
    """

    sequence: int
    start: int
    tokens: list[int]
    sampler: Any = None
    targets: list[int] = []
    """What follows each of the first tokens in the prompt: how likely was it?"""
    target_probs: int = 0
    """And how likely were so many of the likeliest."""
    drafting: Drafting | None = None
    """With a sampler only."""
    draft: list[int] = []
    """The engine's guess at what follows: computed along, and forgotten from the first wrong one on."""


class Sampled(msgspec.Struct, frozen=True):
    """A chosen token and, where asked for, what else could have been chosen."""

    token: int | None
    """None where only the prompt's own tokens were asked about."""
    logprobs: TokenLogprobs | None = None
    prompt: list[TokenLogprobs] = []
    """One for each of the span's targets."""
    last: bool = False
    """Its constraint is satisfied and allows nothing more."""
    error: PaddockError | None = None
    """Why no token could be chosen. It ends this answer, and no other."""
    drafted: int = 0
    """How many tokens were guessed."""
    more: list[Sampled] = []
    """What was chosen after it: one more for each guess that was right, as that was computed already. Nothing follows
    a token that ends the answer.
    """
