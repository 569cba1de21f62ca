"""The answers: the response, its items, and the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paddock.gateway.dialects.openai.schema import TokenLogprob
from paddock.gateway.generation.timings import NativeProgress, NativeTimings
from paddock.gateway.http.openapi import Error
from paddock.receipts import Receipt
from paddock.types import CacheReport

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str = ""


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class OutputReasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Any] = []
    content: list[ReasoningText]


class OutputCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    """The namespace of the function, if `tools` has it in one."""
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ConversationId(msgspec.Struct, kw_only=True):
    id: str


class Response(msgspec.Struct, kw_only=True):
    """The answer, with the parameters of the request."""

    id: str
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    model: str
    output: list[OutputItem]
    """Messages, reasoning and function calls, in the order of generation."""
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: None = None
    background: Literal[False] = False
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    reasoning: dict[str, Any]
    store: bool = False
    """Whether it is stored, so that a request can continue it by its id."""
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    system_fingerprint: str
    malformed_tool_call: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """A message started like a tool call but could not be parsed."""
    cache_report: CacheReport | msgspec.UnsetType = msgspec.UNSET
    receipt: Receipt | msgspec.UnsetType = msgspec.UNSET


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int = 0
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    """In the last event, and with `timings_per_token` in the last event of every step."""
    prompt_progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET


class ResponseCreated(_Event, kw_only=True, tag="response.created"):
    """An event with the whole response."""

    response: Response


class ResponseInProgress(ResponseCreated, tag="response.in_progress"):
    pass


class ResponseCompleted(ResponseCreated, tag="response.completed"):
    pass


class ResponseIncomplete(ResponseCreated, tag="response.incomplete"):
    pass


class ItemAdded(_Event, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(ItemAdded, tag="response.output_item.done"):
    pass


class _InItem(_Event, kw_only=True):
    item_id: str
    output_index: int


class _InPart(_InItem, kw_only=True):
    content_index: int = 0


class PartAdded(_InPart, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(PartAdded, tag="response.content_part.done"):
    pass


class TextDelta(_InPart, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TokenLogprob] = []


class TextDone(_InPart, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[TokenLogprob] = []


class ReasoningDelta(_InPart, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(_InPart, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(_InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_InItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class ErrorEvent(Error, kw_only=True, tag_field="type", tag="error"):
    """The usual error object, and beside it the fields of OpenAI's error events."""

    sequence_number: int = 0
    code: str
    message: str
    param: str | None


Event = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | ErrorEvent
)
