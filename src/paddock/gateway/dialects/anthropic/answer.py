"""A message: one body, or a stream of events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing

import msgspec

from paddock.fleet import Generation
from paddock.gateway.dialects.anthropic import schema
from paddock.gateway.dialects.anthropic.request import MessagesRequest
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import one_cache_report, whole
from paddock.gateway.generation.parts import Change, Part, Parts
from paddock.gateway.generation.receipts import StreamReceipt, no_receipt
from paddock.gateway.http.framing import SSE
from paddock.types import GenerateRequest, Usage
from paddock.wire.messages import Delta

_encode = msgspec.json.Encoder().encode


def parse(body: MessagesRequest, context: RequestContext) -> list[GenerateRequest]:
    return [body.request(context, body.prompt(), max_tokens=body.max_tokens)]


class MessageAnswer:
    def __init__(
        self,
        body: MessagesRequest,
        model: str,
        generations: Sequence[Generation],
        receipt: StreamReceipt = no_receipt,
    ) -> None:
        (generation,) = generations
        self._body = body
        self._generation = generation
        self._receipt = receipt
        self._parts = Parts()
        self._hides_thoughts = body.thinking is not None and body.thinking.display == "omitted"
        self._message = schema.Message(
            id=f"msg_{secrets.token_urlsafe(18)}",
            job_id=body.job_id or msgspec.UNSET,
            model=model,
            usage=schema.MessageUsage(input_tokens=generation.prompt_tokens),
        )

    async def whole(self) -> schema.Message:
        ended = self._ended(self._parts.feed_all(await whole(self._generation)))
        return msgspec.structs.replace(
            self._message,
            content=[self._block(part) for part in self._parts.kept],
            stop_reason=ended.delta.stop_reason,
            stop_sequence=ended.delta.stop_sequence,
            usage=ended.usage,
            malformed_tool_call=ended.malformed_tool_call,
            cache_report=ended.cache_report,
        )

    async def events(self) -> AsyncGenerator[bytes]:
        with closing(self._generation) as generation:
            yield _encoded(schema.MessageStart(self._message))
            async for delta in generation:
                events = [self._event(change) for change in self._parts.feed(delta)]
                if delta.finish is not None:
                    ended = self._ended(delta)
                    ended.receipt = await self._receipt()
                    events += [ended, schema.MessageStop()]
                yield b"".join(_encoded(event) for event in events if event is not None)

    def _ended(self, last: Delta) -> schema.MessageDelta:
        assert last.usage is not None, "with the last delta"
        called = any(part.kind == "call" for part in self._parts.kept)
        reason: schema.StopReason = "end_turn"
        if last.finish == "length":
            reason = "max_tokens"
        elif called:
            reason = "tool_use"
        elif last.stop_string:
            reason = "stop_sequence"
        return schema.MessageDelta(
            delta=schema.Ending(reason, last.stop_string if reason == "stop_sequence" else None),
            usage=_usage(last.usage),
            malformed_tool_call=True if last.malformed else msgspec.UNSET,
            cache_report=one_cache_report(self._body, self._generation),
        )

    # ── parts as blocks ──────────────────────────────────────────────────────────────────────────────────────────────

    def _block(self, part: Part) -> schema.Block:
        match part.kind:
            case "text":
                return schema.Text(text=part.text)
            case "reasoning":
                return schema.Thoughts(thinking="" if self._hides_thoughts else part.text)
            case "call":
                return schema.ToolUse(id=part.call_id, name=part.name, input=_object(part.text))

    def _event(self, change: Change) -> schema.Event | None:
        part = change.part
        match change.kind:
            case "begins":
                return schema.BlockStart(part.index, self._block(part.beginning()))
            case "ends":
                return schema.BlockStop(part.index)
            case "grows" if part.kind == "text":
                return schema.BlockDelta(part.index, schema.TextDelta(change.text))
            case "grows" if part.kind == "call":
                return schema.BlockDelta(part.index, schema.InputDelta(change.text))
            case "grows":
                return (
                    None if self._hides_thoughts else schema.BlockDelta(part.index, schema.ThinkingDelta(change.text))
                )


def _object(text: str) -> object:
    """The arguments of a call; empty if the answer was cut off before they were complete."""
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


def _usage(usage: Usage) -> schema.MessageUsage:
    return schema.MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=schema.OutputTokensDetails(thinking_tokens=usage.reasoning_tokens),
    )


def _encoded(event: schema.Event) -> bytes:
    return SSE.event(_encode(event), str(event.__struct_config__.tag))


PING = _encoded(schema.Ping())
