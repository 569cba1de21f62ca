"""Requests to a worker. The process that sends one puts it into a message with an id (`paddock.wire`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.types.models import Adapters
from paddock.types.prompts import ChatPrompt, MixedPrompt, PairPrompt, Prompt, TextPrompt, TokenPrompt
from paddock.types.sampling import Constraint, SamplingParams, SpeculationType


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The API key that a request belongs to, as far as the scheduler needs it."""

    key: str = ""
    """The key's name; empty on a server without keys."""
    tenant: str = ""
    """Requests share cached prefixes only within a tenant."""
    weight: float = 1.0
    """The key's share of a busy model, relative to the weights of other keys."""
    batch: bool = False
    """Low priority: interactive requests go first."""


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One generation, complete: a dialect builds it, and nothing on the way to the engine changes it."""

    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """None: as many as fit into the context. 0: evaluate the prompt only."""
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    n: int = 1
    """The number of answers."""
    cache_prompt: bool = True
    id_slot: int | None = None
    n_keep: int = 0
    """Prompt tokens that a context shift keeps; -1: all. Only for models with `context_shift`."""
    n_discard: int = 0
    """Tokens that a context shift drops; 0: half of those that it does not keep."""
    deterministic: bool = False
    adapters: Adapters = ()
    """The LoRA adapters that are active, and their scales."""
    prompt_probs: int = -1
    """The number of top tokens to report for each prompt token; -1: report nothing."""
    echo: bool = False
    """Return the tokens of the prompt."""
    return_tokens: bool = False
    special_tokens: bool = False
    """Show the names of special tokens in the answer."""
    timings_per_token: bool = False
    return_progress: bool = False
    """Report the progress of the prefill after each step."""
    cache_report: bool = False
    """Report how much of the prompt was cached, and why not more."""
    receipt: bool = False
    """Report what a receipt needs, with the last delta of each answer."""
    min_indent: int = 0
    """The answer ends before a line with less indentation. The first line is exempt."""
    max_seconds: float = 0.0
    """After this time the answer ends at the next line break; 0: no limit."""
    draft_type: SpeculationType | None = None
    """Which sources of guesses are used, of those that the model has. None: all."""
    draft_n_max: int | None = None
    """This field and the next two override `DraftParams`; None: the model's setting."""
    draft_n_min: int | None = None
    draft_p_min: float | None = None
    draft_ngram_size_m: int | None = None
    """The most tokens to guess at once without a draft model, if the model allows as many."""
    origin: Origin = Origin()
    request_id: str = ""
    """The id in logs and headers."""
    job_id: str = ""
    """The client's id for the job that the request belongs to."""


class PoolRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs for an embedding model, or query-document pairs for a reranking model."""

    inputs: list[TextPrompt | TokenPrompt | MixedPrompt | PairPrompt]
    param: str
    """The field of the HTTP request that holds the inputs, for error messages."""
    normalize: int | None = None
    """The p of the norm to divide vectors by; 0: scale to 16-bit integers, -1: do not normalize. None: divide pooled
    vectors by their Euclidean length.
    """
    dimensions: int | None = None
    """Truncate each vector to this many numbers before it is normalized."""
    origin: Origin = Origin()


class Tokenize(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokenize"):
    """Tokenize texts. Token ids among the texts are kept as they are."""

    parts: list[str | int]
    add_special: bool
    parse_special: bool
    with_pieces: bool
    origin: Origin = Origin()


class Detokenize(msgspec.Struct, frozen=True, omit_defaults=True, tag="detokenize"):
    """Return the text of these tokens."""

    tokens: list[int]
    origin: Origin = Origin()


class Render(msgspec.Struct, frozen=True, omit_defaults=True, tag="render"):
    """Render messages with the model's chat template."""

    prompt: ChatPrompt
    origin: Origin = Origin()


class CountTokens(msgspec.Struct, frozen=True, omit_defaults=True, tag="count_tokens"):
    """Count the tokens of a conversation."""

    prompt: ChatPrompt
    origin: Origin = Origin()


TextQuestion = Tokenize | Detokenize | Render | CountTokens
"""Requests that need a model's vocabulary or chat template, but not the engine."""


class SlotAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Save the tokens of a slot's last request to a file, restore them from a file, or erase them."""

    slot: int
    action: Literal["save", "restore", "erase"]
    folder: str = ""
    filename: str = ""
