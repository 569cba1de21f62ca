"""The plan and the result of one engine step."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paddock.errors import PaddockError
from paddock.types.answers import TokenLogprobs
from paddock.types.sampling import DraftParams

DraftSource = Literal["ngram", "tree", "grammar", "model"]
"""Where a draft comes from: the request's own text, another answer to the same tokens, the only tokens that a grammar
allows, or the draft model.
"""


class Drafting(msgspec.Struct, frozen=True):
    """Permission to draft tokens for an answer."""

    tokens: list[int]
    """Prompt and answer so far. This is the request's own list, which only grows, and not a copy."""
    params: DraftParams
    """`n_max` and `lookup` are limited to the room that is left, and 0 where that source must not be used now."""


class MediaSpan(msgspec.Struct, frozen=True):
    """The tokens `start..end` of a prompt that stand for an image, a part of one, or sound. Their ids are negative and
    made of a hash of the content, so that equal content has equal ids.
    """

    start: int
    end: int
    chunk: Any
    """The engine's own object. It belongs to this prompt."""
    is_whole: bool = False
    """All of its tokens must be computed in one step."""
    attends_both_ways: bool = False
    """Its tokens attend to each other in both directions."""
    is_private: bool = False
    """A sequence with it cannot share a prefix."""


class Span(msgspec.Struct):
    """Consecutive tokens of one sequence to decode in one step.

    If `sampler` is set, the engine samples the token after the last one with it.
    """

    sequence: int
    start: int
    tokens: list[int]
    sampler: Any = None
    targets: list[int] = []
    """The prompt tokens that follow the first tokens of the span, to compute their probabilities."""
    target_probs: int = 0
    """The number of most likely tokens to report for each target."""
    drafting: Drafting | None = None
    """Only with a sampler."""
    draft: list[int] = []
    """Drafted tokens, at most as many as `drafting` allows. The scheduler or the engine sets them. The engine decodes
    them too, and removes them from the first wrong one on.
    """
    draft_source: DraftSource | None = None
    """Where the draft comes from. None: there is none."""
    padding: int = 0
    """So many more tokens are computed after these and their drafts, and forgotten: whole tiles take less time."""
    media: MediaSpan | None = None
    """All tokens of the span are a part of this. None: they are text."""


class Sampled(msgspec.Struct, frozen=True):
    """A sampled token and, if requested, the alternatives."""

    token: int | None
    """None: only probabilities of prompt tokens were requested."""
    logprobs: TokenLogprobs | None = None
    prompt: list[TokenLogprobs] = []
    """One for each target of the span."""
    last: bool = False
    """The constraint is satisfied and allows no further token."""
    error: PaddockError | None = None
    """Why no token could be sampled. The error ends this answer only."""
    drafted: int = 0
    """The number of drafted tokens."""
    draft_source: DraftSource | None = None
    more: list[Sampled] = []
    """Further sampled tokens: one for each accepted draft. None follows a token that ends the answer."""
