"""Parameters of sampling, constraints and drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

SamplerName = Literal[
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"
]  # fmt: skip
_NAMES: tuple[SamplerName, ...] = get_args(SamplerName)
_LETTERS: Mapping[str, SamplerName] = dict(zip("edskypmxta", _NAMES, strict=True))
"""llama.cpp's letters for samplers."""
_SPELLINGS: Mapping[str, SamplerName] = {
    **{spelling: name for name in _NAMES for spelling in (name, name.replace("_", "-"), name.replace("_", ""))},
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
}


def sampler_named(name: str) -> SamplerName:
    """The sampler with this name, in any of llama.cpp's spellings. Raises `ValueError`."""
    found = _SPELLINGS.get(name.lower())
    if found is None:
        raise ValueError(f"unknown sampler {name!r}; the samplers are {', '.join(_NAMES)}")
    return found


def sampler_letter(letter: str) -> SamplerName:
    """Raises `ValueError`."""
    if letter not in _LETTERS:
        letters = ", ".join(f"{letter} ({name})" for letter, name in _LETTERS.items())
        raise ValueError(f"unknown sampler {letter!r}; the letters are {letters}")
    return _LETTERS[letter]


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters. Names, meanings and defaults are those of llama-server."""

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
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    adaptive_target: float = -1.0
    """The probability near which `adaptive_p` chooses tokens; negative: no effect."""
    adaptive_decay: float = 0.9
    samplers: tuple[SamplerName, ...] = tuple(name for name in _NAMES if name != "adaptive_p")
    """The active samplers, in this order. `adaptive_p` always comes last, since it chooses the token."""
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    """The biases of tokens. A text stands for all its tokens."""
    ignore_eos: bool = False
    seed: int | None = None
    n_probs: int = -1
    """The number of most likely tokens to report for each sampled token; -1: report nothing."""
    post_sampling_probs: bool = False
    """Report the probabilities after the samplers instead of the model's own."""


class Constraint(msgspec.Struct, frozen=True):
    """A schema, regular expression or grammar that an answer must match."""

    kind: Literal["json_schema", "regex", "gbnf", "lark"]
    source: str
    param: str
    """The request's field for the constraint, for error messages."""
    parts: tuple[Constraint, ...] = ()
    """Constraints that a Lark grammar refers to as `@part0`, `@part1` …"""


SpeculationType = Literal["none", "ngram", "draft", "auto"]
"""How tokens are guessed: not at all, from earlier text, by the draft model, or by both where that pays."""


class DraftParams(msgspec.Struct, frozen=True):
    """Parameters of speculative decoding. Names and meanings are those of llama-server."""

    n_max: int
    """The most tokens that a draft model proposes at once; 0: none."""
    n_min: int
    """Drafts of fewer tokens are not verified."""
    p_min: float
    """The draft ends before a token whose probability is lower than this."""
    lookup: int
    """The most tokens to guess at once without a draft model: from earlier text, or because a grammar allows no others.
    0: no guesses.
    """
    priced: bool
    """Guess only while that is expected to save time. Otherwise: always."""

    def limited(self, type: SpeculationType | None) -> DraftParams:
        """Without the sources that this type does not use. None: all."""
        changes: dict[SpeculationType | None, dict[str, int]] = {
            "none": {"n_max": 0, "lookup": 0},
            "ngram": {"n_max": 0, "priced": False},
            "draft": {"lookup": 0, "priced": False},
            "auto": {"priced": True},
        }
        return msgspec.structs.replace(self, **changes.get(type, {}))
