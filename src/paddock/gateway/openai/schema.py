"""The shapes of OpenAI's API: pydantic for what comes in, msgspec for what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from paddock.errors import UnsupportedParameter
from paddock.types import SamplerName, SamplingParams

# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _In(BaseModel):
    # Strict: "0.7" is not a temperature. No infinities: JSON has none, but some clients write them.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(_In):
    type: Literal["text"]
    text: str


# A discriminated union, so that an error is about the branch the client meant. The tags become part of pydantic's
# path; not being identifiers they are left out of the `param` we report.
Content = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[TextPart], Tag("(parts)")],
    Discriminator(lambda value: "(parts)" if isinstance(value, list) else "(text)"),
]


class Message(_In):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        return self


class StreamOptions(_In):
    include_usage: bool = False


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[
    list[Annotated[str, StringConstraints(min_length=1)]], BeforeValidator(_as_list), Field(max_length=32)
]


_LARGEST_BIAS = 1000


def _biases(value: Any) -> Any:
    """OpenAI writes an object of token id → bias, llama-server a list of [token id, bias or false for never]."""
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, list):
        raise ValueError("an object of token ids and biases, or a list of pairs")
    pairs: list[tuple[int, float]] = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("every entry must be a pair of token id and bias")
        token, bias = pair
        if isinstance(token, str) and token.isdecimal():
            token = int(token)
        if type(token) is not int or token < 0:
            raise ValueError(f"{pair[0]!r} is not a token id")
        if bias is not False and type(bias) not in (int, float):
            raise ValueError(f"{bias!r} is not a bias")
        if abs(bias) > _LARGEST_BIAS:
            raise ValueError(f"a bias lies between -{_LARGEST_BIAS} and {_LARGEST_BIAS}; false means never")
        pairs.append((token, float("-inf") if bias is False else float(bias)))
    return pairs


LogitBias = Annotated[
    list[tuple[int, Annotated[float, AllowInfNan(True)]]], BeforeValidator(_biases), Field(max_length=1024)
]

# What cannot be honoured yet, with the values that ask for nothing and therefore pass.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
# Accepted, because they ask for nothing that would change the answer.
_LABELS = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")


class SamplingFields(_In):
    """What llama-server and OpenAI's API let a request say about the choice of tokens."""

    temperature: float | None = Field(None, ge=0)
    dynatemp_range: float | None = Field(None, ge=0)
    dynatemp_exponent: float | None = Field(None, ge=0)
    do_sample: bool | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, ge=0, le=1)
    top_n_sigma: float | None = None
    xtc_probability: float | None = Field(None, ge=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=1)
    repeat_last_n: int | None = Field(None, ge=-1)
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)
    dry_multiplier: float | None = Field(None, ge=0)
    dry_base: float | None = Field(None, ge=1)
    dry_allowed_length: int | None = Field(None, ge=0)
    dry_penalty_last_n: int | None = Field(None, ge=-1)
    dry_sequence_breakers: list[str] | None = Field(None, max_length=64)
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: float | None = Field(None, ge=0)
    mirostat_eta: float | None = Field(None, ge=0)
    min_keep: int | None = Field(None, ge=0)
    samplers: list[SamplerName] | None = None
    logit_bias: LogitBias | None = None
    ignore_eos: bool | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)

    def sampling(self, **more: Any) -> SamplingParams:
        given = {name: getattr(self, name) for name in SamplingFields.model_fields if name != "do_sample"}
        given = {name: value for name, value in given.items() if value is not None} | more
        if self.do_sample is False:
            given["temperature"] = 0.0
        if given.get("seed") == -1:  # llama.cpp's way of asking for a random one
            del given["seed"]
        return msgspec.convert(given, SamplingParams)


class ChatCompletionRequest(SamplingFields):
    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=-1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    stop: StopStrings | None = None
    n: int | None = Field(None, ge=1, le=128)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    post_sampling_probs: bool | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = Field(None, ge=-1)
    deterministic: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, neutral in _NOT_YET.items():
            value = data.get(name)
            if value is not None and value not in neutral:
                raise UnsupportedParameter(f"{name!r} is not supported yet", param=name)
        return {name: value for name, value in data.items() if name not in _NOT_YET and name not in _LABELS}

    @model_validator(mode="after")
    def _consistent(self) -> ChatCompletionRequest:
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be at least 1")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is allowed with logprobs: true only")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed with stream: true only")
        return self

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have; None (also written -1) is up to the context's end."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return None if limit == -1 else limit


# ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class CompletionUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class Choice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: CompletionUsage


class ChoiceDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | msgspec.UnsetType | None = msgspec.UNSET
    """With `include_usage`: null in every chunk but the last, which has it and no choices. Otherwise absent."""


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["local"] = "local"


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]
