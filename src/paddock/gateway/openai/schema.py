"""The shapes of OpenAI's API: pydantic for what comes in, msgspec for what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
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

# What cannot be honoured yet, with the values that ask for nothing and therefore pass.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
# Accepted, because they ask for nothing that would change the answer.
_LABELS = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")


class ChatCompletionRequest(_In):
    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=-1)
    max_completion_tokens: int | None = Field(None, ge=-1)
    temperature: float | None = Field(None, ge=0)
    do_sample: bool | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopStrings | None = None

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


class Choice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class ChoiceDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChoiceDelta
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
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
