"""How the tokens of an answer are chosen."""

from __future__ import annotations

from typing import Literal

import msgspec

SamplerName = Literal[
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"
]  # fmt: skip


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. Names, meanings and defaults are llama-server's."""

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    samplers: tuple[SamplerName, ...] = (
        *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    )
    """Which samplers act, in this order."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n_probs: int = -1
    """How many of the likeliest tokens to report beside each chosen one; -1: report nothing."""
    post_sampling_probs: bool = False
    """Report the probabilities that the samplers left, instead of the model's own."""


class Constraint(msgspec.Struct, frozen=True):
    """What an answer must look like, whatever the model would rather say."""

    kind: Literal["json_schema", "regex", "gbnf", "lark"]
    source: str
    param: str
    """The field of the request that asked for it, to be named should it be refused."""
    parts: tuple[Constraint, ...] = ()
    """What a Lark grammar refers to as `@part0`, `@part1` …"""


class DraftParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a draft model guesses ahead. Names and meanings are llama-server's."""

    n_max: int = 4
    """The most tokens at once; 0: none."""
    n_min: int = 0
    """Fewer are not worth checking."""
    p_min: float = 0.75
    """It stops before a token that it thinks less likely than this."""
