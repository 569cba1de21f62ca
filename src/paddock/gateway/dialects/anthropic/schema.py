"""The answers: a message of blocks, the events of a stream, and errors."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from paddock.errors import ContextLengthExceeded, PaddockError
from paddock.gateway.http.openapi import Error
from paddock.gateway.http.responses import error_body
from paddock.receipts import Receipt
from paddock.types import CacheReport


class Text(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class Thoughts(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """Nothing is signed: reasoning can be sent back as it is."""


class ToolUse(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Any


Block = Text | Thoughts | ToolUse
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    """Prompt tokens that were not cached."""
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails | None = None


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    malformed_tool_call: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """A text started like a tool call but could not be parsed."""
    cache_report: CacheReport | msgspec.UnsetType = msgspec.UNSET
    receipt: Receipt | msgspec.UnsetType = msgspec.UNSET


class Failure(Error, tag_field="type", tag="error"):
    """An error, with Anthropic's types."""


_ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error_body(error: PaddockError) -> dict[str, Any]:
    body = error_body(error)
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    own = {"type": kind}
    if isinstance(error, ContextLengthExceeded) and error.numbers:
        # Clients read both numbers from Anthropic's sentence, to shorten the conversation.
        own["message"] = "prompt is too long: {n_prompt_tokens} tokens > {n_ctx} maximum".format(**error.numbers)
    return {"type": "error"} | body | {"error": body["error"] | own}


class TokenCount(msgspec.Struct):
    input_tokens: int


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class Ending(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="message_delta"):
    delta: Ending
    usage: MessageUsage
    malformed_tool_call: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    cache_report: CacheReport | msgspec.UnsetType = msgspec.UNSET
    receipt: Receipt | msgspec.UnsetType = msgspec.UNSET


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Sent while the stream is silent."""


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
