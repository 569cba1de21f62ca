"""The answers: the response, its items, and the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paddock.gateway.dialects.openai.answers import TokenLogprob
from paddock.gateway.generation.timings import NativeTimings

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
    previous_response_id: None = None
    reasoning: dict[str, Any]
    store: Literal[False] = False
    """Nothing is stored."""
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
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET


class InputTokens(msgspec.Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Event(msgspec.Struct, kw_only=True):
    sequence_number: int = 0


class _ResponseEvent(_Event, kw_only=True, tag_field="type"):
    """The whole response, at the start and at the end."""

    response: Response


class ResponseCreated(_ResponseEvent, tag="response.created"):
    pass


class ResponseInProgress(_ResponseEvent, tag="response.in_progress"):
    pass


class ResponseCompleted(_ResponseEvent, tag="response.completed"):
    pass


class ResponseIncomplete(_ResponseEvent, tag="response.incomplete"):
    pass


class _ItemEvent(_Event, kw_only=True, tag_field="type"):
    output_index: int
    item: OutputItem


class ItemAdded(_ItemEvent, tag="response.output_item.added"):
    pass


class ItemDone(_ItemEvent, tag="response.output_item.done"):
    pass


class _PartEvent(_Event, kw_only=True, tag_field="type"):
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class PartAdded(_PartEvent, tag="response.content_part.added"):
    pass


class PartDone(_PartEvent, tag="response.content_part.done"):
    pass


class TextDelta(_Event, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = []


class TextDone(_Event, kw_only=True, tag_field="type", tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = []


class ReasoningDelta(_Event, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningDone(_Event, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class ArgumentsDelta(_Event, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


class ErrorEvent(_Event, kw_only=True, tag_field="type", tag="error"):
    """The usual error object, and beside it the fields of OpenAI's error events."""

    code: str
    message: str
    param: str | None
    error: dict[str, Any]
    request_id: str


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
