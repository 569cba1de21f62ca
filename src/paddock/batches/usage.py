"""The tokens that a reply reports."""

from __future__ import annotations

import msgspec

from paddock.batches.records import TokenUsage


def usage_of(reply: bytes) -> TokenUsage:
    """The tokens that a reply reports, in the words of any dialect."""
    try:
        usage = msgspec.json.decode(reply, type=_Reply).usage or _Usage()
    except msgspec.MsgspecError:
        return TokenUsage()
    details = usage.prompt_tokens_details or usage.input_tokens_details or _InputDetails()
    made = usage.completion_tokens_details or usage.output_tokens_details or _OutputDetails()
    cached = details.cached_tokens + usage.cache_read_input_tokens
    return TokenUsage(
        usage.prompt_tokens + usage.input_tokens + usage.cache_read_input_tokens,
        cached,
        usage.completion_tokens + usage.output_tokens,
        made.reasoning_tokens,
    )


class _InputDetails(msgspec.Struct):
    cached_tokens: int = 0


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    prompt_tokens_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None
