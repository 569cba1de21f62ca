"""The bodies and the answers of llama-server's own completions."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import Field

from paddock.gateway.generation.fields import LARGEST, GenerationFields, Prompts
from paddock.gateway.generation.timings import NativeProgress, NativeTimings
from paddock.gateway.http.fields import Fields
from paddock.gateway.http.sizes import MOST_ANSWERS, MOST_FILES, MOST_RESPONSE_FIELDS

# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class NativeFields(GenerationFields):
    """The fields of `/completion` and `/infill`."""

    n_predict: int | None = Field(None, ge=-1, le=LARGEST)
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    """Another name for `n_predict`."""
    n_probs: int | None = Field(None, ge=0, le=1024)
    n_cmpl: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    return_tokens: bool | None = None
    t_max_predict_ms: int | None = Field(None, ge=0, le=LARGEST)
    response_fields: list[str] | None = Field(None, max_length=MOST_RESPONSE_FIELDS)

    @property
    def limit(self) -> int:
        """The most tokens of the answer; -1: up to the end of the context."""
        given = self.n_predict if self.n_predict is not None else self.max_tokens
        return -1 if given is None else given


class NativeCompletionRequest(NativeFields):
    token_lists = frozenset({"prompt"})

    prompt: Prompts


class ExtraFile(Fields):
    """A file that is added to the prompt as context."""

    text: str
    filename: str = "tmp"


class InfillRequest(NativeFields):
    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] = Field([], max_length=MOST_FILES)
    prompt: str = ""
    """Follows the prefix."""


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Probability(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A token and its log probability, or its probability after sampling if that was requested."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET


class TokenProbabilities(Probability, kw_only=True):
    top_logprobs: list[Probability] | msgspec.UnsetType = msgspec.UNSET
    top_probs: list[Probability] | msgspec.UnsetType = msgspec.UNSET


class _Native(msgspec.Struct, kw_only=True):
    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenProbabilities] | msgspec.UnsetType = msgspec.UNSET


class NativeCompletionPart(_Native, kw_only=True):
    """One event of a stream."""

    stop: bool = False
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET


class NativeCompletion(_Native, kw_only=True):
    stop: bool = True
    model: str
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: NativeTimings
    job_id: str | msgspec.UnsetType = msgspec.UNSET
