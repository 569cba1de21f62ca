"""The shapes of llama-server's own completions: pydantic for what comes in, msgspec for what goes out."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import Field, model_validator

from paddock.gateway.fields import GenerationFields, Prompts, without_unsupported
from paddock.types import Timings

# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

# What cannot be honoured yet, with the values that ask for nothing and therefore pass.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "lora": ([],),
    "n_indent": (0,),
    "return_progress": (False,),
    "sse_ping_interval": (-1,),
}
# Nothing is ever shifted out of a context here, so what to keep then and how to reuse the rest asks for nothing.
_NO_EFFECT = ("n_cache_reuse", "n_discard", "n_keep")


class NativeCompletionRequest(GenerationFields):
    prompt: Prompts
    n_predict: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=-1)
    """Another name for `n_predict`."""
    n_probs: int | None = Field(None, ge=0, le=1024)
    n_cmpl: int | None = Field(None, ge=1, le=128)
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    t_max_predict_ms: int | None = Field(None, ge=0)
    response_fields: list[str] | None = Field(None, max_length=256)

    @property
    def limit(self) -> int:
        """The most tokens the answer may have; -1: up to the context's end."""
        given = self.n_predict if self.n_predict is not None else self.max_tokens
        return -1 if given is None else given

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, data: Any) -> Any:
        return without_unsupported(data, _NOT_YET, _NO_EFFECT)


# ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class NativeTimings(msgspec.Struct, kw_only=True):
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


def native_timings(timings: Timings, *, cached: int, prompt: int, predicted: int) -> NativeTimings:
    """Of so many prompt tokens that were known, computed, and generated."""
    prompt_ms, predicted_ms = 1000 * timings.prompt, 1000 * timings.generation
    return NativeTimings(
        cache_n=cached,
        prompt_n=prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / prompt if prompt else 0.0,
        prompt_per_second=1000 * prompt / prompt_ms if prompt_ms else 0.0,
        predicted_n=predicted,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / predicted if predicted else 0.0,
        predicted_per_second=1000 * predicted / predicted_ms if predicted_ms else 0.0,
    )


class Probability(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A token and how likely it was: as a logarithm, or as it is where asked for what the samplers left."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET


class TokenProbabilities(Probability, kw_only=True):
    top_logprobs: list[Probability] | msgspec.UnsetType = msgspec.UNSET
    top_probs: list[Probability] | msgspec.UnsetType = msgspec.UNSET


class NativeCompletionPart(msgspec.Struct, kw_only=True):
    """What a stream sends for a step."""

    index: int
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    completion_probabilities: list[TokenProbabilities] | msgspec.UnsetType = msgspec.UNSET


class NativeCompletion(msgspec.Struct, kw_only=True):
    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: NativeTimings
    completion_probabilities: list[TokenProbabilities] | msgspec.UnsetType = msgspec.UNSET
