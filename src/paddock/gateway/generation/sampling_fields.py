"""The sampling parameters of a request."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AllowInfNan, BeforeValidator, Field, StringConstraints

from paddock.gateway.http import sizes
from paddock.gateway.http.fields import BodyFields
from paddock.types import SamplerName, SamplingParams, sampler_letter, sampler_named

_LARGEST_BIAS = 1000
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,19}")


def _biases(value: Any) -> Any:
    """OpenAI has an object of token id → bias, llama-server a list of pairs. A token is an id or a text, which stands
    for all its tokens, and the bias false means never. In an object a key that is a number is an id.
    """
    if isinstance(value, dict):
        value = [(int(token) if _NUMBER.fullmatch(token) else token, bias) for token, bias in value.items()]
    if not isinstance(value, list):
        raise ValueError("it must be an object of tokens and biases, or a list of pairs")
    pairs: list[tuple[int | str, float]] = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("every entry must be a pair of a token and a bias")
        token, bias = pair
        if not (isinstance(token, str) and 0 < len(token) <= sizes.LONGEST_BIASED) and not _is_token(token):
            expected = f"a token id or a text of 1 to {sizes.LONGEST_BIASED} characters"
            raise ValueError(f"{str(token)[:80]!r} is not {expected}")
        if bias is not False and type(bias) not in (int, float):
            raise ValueError(f"{bias!r} is not a bias")
        if abs(bias) > _LARGEST_BIAS:
            raise ValueError(f"the bias {bias} is not between -{_LARGEST_BIAS} and {_LARGEST_BIAS}; false means never")
        pairs.append((token, float("-inf") if bias is False else float(bias)))
    return pairs


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value <= sizes.LARGEST_INTEGER


LogitBias = Annotated[
    list[tuple[int | str, Annotated[float, AllowInfNan(True)]]],
    BeforeValidator(_biases, json_schema_input_type=dict[str, float | bool] | list[tuple[int | str, float | bool]]),
    Field(max_length=sizes.MOST_BIASES),
]


def _samplers(value: Any) -> Any:
    """A list of names in any of llama-server's spellings, or a text of its letters."""
    if isinstance(value, str):
        return [sampler_letter(letter) for letter in value]
    if not isinstance(value, list):
        return value
    return [sampler_named(name) if isinstance(name, str) else name for name in value]


Samplers = Annotated[
    list[SamplerName],
    BeforeValidator(_samplers, json_schema_input_type=list[str] | str),
    Field(max_length=sizes.MOST_SAMPLERS),
]


class SamplingFields(BodyFields):
    """The sampling parameters of llama-server and of OpenAI's API."""

    temperature: float | None = Field(None, ge=0)
    dynatemp_range: float | None = Field(None, ge=0)
    dynatemp_exponent: float | None = Field(None, ge=0)
    do_sample: bool | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=sizes.LARGEST_INTEGER)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, ge=0, le=1)
    top_n_sigma: float | None = None
    xtc_probability: float | None = Field(None, ge=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=1)
    repeat_last_n: int | None = Field(None, ge=-1, le=sizes.LARGEST_INTEGER)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)
    dry_multiplier: float | None = Field(None, ge=0)
    dry_base: float | None = Field(None, ge=1)
    dry_allowed_length: int | None = Field(None, ge=0, le=sizes.LARGEST_INTEGER)
    dry_penalty_last_n: int | None = Field(None, ge=-1, le=sizes.LARGEST_INTEGER)
    dry_sequence_breakers: list[Annotated[str, StringConstraints(max_length=sizes.LONGEST_BREAKER)]] | None = Field(
        None, max_length=sizes.MOST_BREAKERS
    )
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: float | None = Field(None, ge=0)
    mirostat_eta: float | None = Field(None, ge=0)
    adaptive_target: float | None = Field(None, le=1)
    adaptive_decay: float | None = Field(None, ge=0, le=0.99)
    min_keep: int | None = Field(None, ge=0, le=sizes.LARGEST_INTEGER)
    samplers: Samplers | None = None
    logit_bias: LogitBias | None = None
    ignore_eos: bool | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    post_sampling_probs: bool | None = None

    def sampling(self, **more: Any) -> SamplingParams:
        given = {name: getattr(self, name) for name in SamplingFields.model_fields if name != "do_sample"}
        given = {name: value for name, value in given.items() if value is not None} | more
        if self.do_sample is False:
            given["temperature"] = 0.0
        if given.get("seed") == -1:  # llama.cpp's value for a random seed
            del given["seed"]
        return msgspec.convert(given, SamplingParams)
