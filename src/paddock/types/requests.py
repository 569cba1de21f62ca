"""What is asked of a worker, and for whom."""

from __future__ import annotations

import msgspec

from paddock.types.models import Adapters
from paddock.types.prompts import MixedPrompt, PairPrompt, Prompt, TextPrompt, TokenPrompt
from paddock.types.sampling import Constraint, SamplingParams


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """For whom a request is, as far as that matters to those who share a model with them."""

    key: str = ""
    """The name of their API key; empty where none is asked for."""
    tenant: str = ""
    """Prefixes are shared within a tenant only."""
    weight: float = 1.0
    """How large their share is beside others'."""
    batch: bool = False
    """Nobody waits for the answer: others go first."""


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One generation as a worker receives it."""

    id: int
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """0: only read the prompt."""
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    n: int = 1
    """How many answers to the one prompt."""
    cache_prompt: bool = True
    id_slot: int | None = None
    deterministic: bool = False
    adapters: Adapters | None = None
    """As the client lists them, or None for those of the model. The fleet makes a set of either, and tells a worker."""
    prompt_probs: int = -1
    """How many of the likeliest tokens to report beside each of the prompt's own; -1: report nothing."""
    echo: bool = False
    """Say which tokens the prompt was read as."""
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    """Say after each step how much of the prompt has been read."""
    min_indent: int = 0
    """The answer ends before a line that is indented by less; its first line is free."""
    max_seconds: float = 0.0
    """After so long an answer ends with its next line; 0: it may take as long as it takes."""
    draft_n_max: int | None = None
    """As of `DraftParams`, and so are the next two; what is None is as the model's operator set it."""
    draft_n_min: int | None = None
    draft_p_min: float | None = None
    origin: Origin = Origin()
    request_id: str = ""
    """What the log calls it."""
    job_id: str = ""
    """What its client calls the job that it belongs to."""


class PoolRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs of which a model that does not generate makes vectors, or of pairs a score each."""

    id: int
    inputs: list[TextPrompt | TokenPrompt | MixedPrompt | PairPrompt]
    param: str
    """The field of the request that holds them, to be named should one be refused."""
    normalize: int | None = None
    """The p of the norm that vectors are divided by; 0: scaled to 16-bit integers, -1: as they are. Unless given,
    pooled ones are divided by their length.
    """
    dimensions: int | None = None
    """Only so many of each vector's numbers, cut off before it is normalised."""
    origin: Origin = Origin()
