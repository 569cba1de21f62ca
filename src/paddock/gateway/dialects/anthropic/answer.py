"""A message: one body, or a stream of events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing

import msgspec

from paddock.fleet import Generation
from paddock.gateway.dialects.anthropic.request import MessagesRequest
from paddock.gateway.dialects.anthropic.schema import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    Event,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    Ping,
    StopReason,
    Text,
    TextDelta,
    ThinkingDelta,
    Thoughts,
    ToolUse,
)
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import whole
from paddock.gateway.generation.parts import Change, Part, Parts
from paddock.gateway.generation.timings import timings_of
from paddock.gateway.http.framing import SSE
from paddock.types import GenerateRequest, Usage
from paddock.wire import Delta

_encode = msgspec.json.Encoder().encode


def parse(body: MessagesRequest, context: RequestContext) -> list[GenerateRequest]:
    return [body.request(context, body.prompt(), max_tokens=body.max_tokens)]


class MessageAnswer:
    def __init__(self, body: MessagesRequest, model: str, generations: Sequence[Generation]) -> None:
        (generation,) = generations
        self._generation = generation
        self._parts = Parts()
        self._hides_thoughts = body.thinking is not None and body.thinking.display == "omitted"
        self._message = Message(
            id=f"msg_{secrets.token_urlsafe(18)}",
            job_id=body.job_id or msgspec.UNSET,
            model=body.model or model,
            usage=MessageUsage(input_tokens=generation.prompt_tokens),
        )

    async def whole(self) -> Message:
        deltas = await whole(self._generation)
        self._parts.feed_all(deltas)
        ended = self._ended(deltas[-1])
        return msgspec.structs.replace(
            self._message,
            content=[self._block(part) for part in self._parts.kept],
            stop_reason=ended.delta.stop_reason,
            stop_sequence=ended.delta.stop_sequence,
            usage=ended.usage,
            malformed_tool_call=ended.malformed_tool_call,
            timings=ended.timings,
        )

    async def events(self) -> AsyncGenerator[bytes]:
        with closing(self._generation) as generation:
            yield _written(MessageStart(self._message))
            async for delta in generation:
                events = [self._event(change) for change in self._parts.feed(delta)]
                if delta.finish is not None:
                    events += [self._ended(delta), MessageStop()]
                yield b"".join(_written(event) for event in events if event is not None)

    def _ended(self, last: Delta) -> MessageDelta:
        assert last.usage is not None, "with the last delta"
        called = any(part.kind == "call" for part in self._parts.kept)
        reason: StopReason = "end_turn"
        if last.finish == "length":
            reason = "max_tokens"
        elif called:
            reason = "tool_use"
        elif last.stop_string:
            reason = "stop_sequence"
        return MessageDelta(
            delta=Ending(reason, last.stop_string if reason == "stop_sequence" else None),
            usage=_usage(last.usage),
            malformed_tool_call=True if last.malformed else msgspec.UNSET,
            timings=timings_of(last.timings, last.usage),
        )

    # ── parts as blocks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _block(self, part: Part) -> Block:
        match part.kind:
            case "text":
                return Text(text=part.text)
            case "reasoning":
                return Thoughts(thinking="" if self._hides_thoughts else part.text)
            case "call":
                return ToolUse(id=part.call_id, name=part.name, input=_object(part.text))

    def _event(self, change: Change) -> Event | None:
        part = change.part
        match change.kind:
            case "begins":
                return BlockStart(part.index, self._block(part.beginning()))
            case "ends":
                return BlockStop(part.index)
            case "grows" if part.kind == "text":
                return BlockDelta(part.index, TextDelta(change.text))
            case "grows" if part.kind == "call":
                return BlockDelta(part.index, InputDelta(change.text))
            case "grows":
                return None if self._hides_thoughts else BlockDelta(part.index, ThinkingDelta(change.text))


def _object(text: str) -> object:
    """The arguments of a call; empty if the answer was cut off before they were complete."""
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


def _usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(thinking_tokens=usage.reasoning_tokens),
    )


def _written(event: Event) -> bytes:
    return SSE.event(_encode(event), str(event.__struct_config__.tag))


PING = _written(Ping())
