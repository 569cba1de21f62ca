"""The answers of chat completions and completions: whole bodies, and the events of streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paddock.gateway.generation.fields import GenerationFields
from paddock.gateway.generation.native import NativeCompletion
from paddock.gateway.generation.timings import NativeProgress, NativeTimings
from paddock.receipts import Receipt
from paddock.types import CacheReport, Usage


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class CompletionUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ToolCallFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: ToolCallFunction


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    malformed_tool_call: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """The content started like a tool call but could not be parsed."""


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


class _Head(msgspec.Struct, kw_only=True):
    """The fields that all answers have, in this order."""

    id: str
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]


class ChatCompletion(_Head, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[Choice]
    usage: CompletionUsage
    timings: NativeTimings
    cache_report: CacheReport | msgspec.UnsetType = msgspec.UNSET
    receipt: Receipt | msgspec.UnsetType = msgspec.UNSET
    verbose: NativeCompletion | msgspec.UnsetType = msgspec.field(name="__verbose", default=msgspec.UNSET)


class FunctionDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The first delta of a call has its id, type and name; the others have more of its arguments."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


class ChoiceDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    malformed_tool_call: bool = False


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None


class _Chunk(_Head, kw_only=True):
    usage: CompletionUsage | msgspec.UnsetType | None = msgspec.UNSET
    """With `include_usage`: null in every chunk but the last, which has no choices. Otherwise absent."""
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    """In the last chunk, and in every one with `timings_per_token`."""
    prompt_progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET
    cache_report: CacheReport | list[CacheReport | None] | msgspec.UnsetType = msgspec.UNSET
    """With `cache_report`: in the last chunk. For several prompts it is a list."""
    receipt: Receipt | msgspec.UnsetType = msgspec.UNSET
    """With `receipt`: in the last chunk."""
    verbose: Any = msgspec.field(name="__verbose", default=msgspec.UNSET)
    """With `verbose`: llama-server's own event, in the last chunk of a chat and in every chunk of a completion."""


class ChatCompletionChunk(_Chunk, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """OpenAI's older shape: a list for each property instead of an object for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(_Chunk, kw_only=True):
    """A whole answer, or a part of one in a stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


def new_head(prefix: str, body: GenerationFields, model: str) -> dict[str, Any]:
    """The fields of `_Head` that are known when the generation starts."""
    return {
        "id": f"{prefix}-{secrets.token_urlsafe(18)}",
        "job_id": body.job_id or msgspec.UNSET,
        "created": int(time.time()),
        "model": model,
    }


def usage_of(prompts: Sequence[Sequence[Usage]]) -> CompletionUsage:
    """The usage of the answers to each prompt. A prompt counts once, for any number of answers."""
    prompt = sum(answers[0].prompt_tokens for answers in prompts)
    completion = sum(usage.completion_tokens for answers in prompts for usage in answers)
    reasoning = sum(usage.reasoning_tokens for answers in prompts for usage in answers)
    cached = sum(min(usage.cached_tokens for usage in answers) for answers in prompts)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning),
    )
