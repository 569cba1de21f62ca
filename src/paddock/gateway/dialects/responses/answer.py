"""A response: one body, or a stream of events."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import msgspec

from paddock.errors import PaddockError
from paddock.fleet import Generation
from paddock.gateway.dialects.openai.chat import token_logprobs
from paddock.gateway.dialects.responses import schema
from paddock.gateway.dialects.responses.request import ResponseRequest
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import one_cache_report, whole
from paddock.gateway.generation.parts import Change, Part, Parts
from paddock.gateway.generation.receipts import StreamReceipt, no_receipt
from paddock.gateway.generation.timings import native_progress, timings_of
from paddock.gateway.http.framing import SSE
from paddock.gateway.http.request_context import note_failure
from paddock.gateway.http.responses import error_body, struct_from
from paddock.types import GenerateRequest, Usage
from paddock.wire.messages import Delta

_encode = msgspec.json.Encoder().encode


def parse(body: ResponseRequest, context: RequestContext) -> list[GenerateRequest]:
    n_probs = body.top_logprobs or 0 if body.with_logprobs else -1
    return [body.request(context, body.prompt(), max_tokens=body.max_output_tokens, n_probs=n_probs)]


class ResponseAnswer:
    def __init__(
        self,
        body: ResponseRequest,
        model: str,
        generations: Sequence[Generation],
        receipt: StreamReceipt = no_receipt,
    ) -> None:
        (generation,) = generations
        self._body = body
        self._generation = generation
        self._receipt = receipt
        self._mark = secrets.token_hex(16)
        self._numbers = count()
        self._parts = Parts()
        self._functions = body.functions
        turn = body.turn
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
        self._response = struct_from(
            schema.Response,
            body.sampling(),
            id=f"resp_{self._mark}",
            job_id=body.job_id or msgspec.UNSET,
            created_at=int(time.time()),
            status="in_progress",
            model=model,
            output=[],
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning.model_dump() if body.reasoning is not None else {},
            text={"format": {"type": "text"}} | text,
            tool_choice=_dumped(body.tool_choice) or "auto",
            tools=[_dumped(tool) for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            system_fingerprint=generation.fingerprint,
            previous_response_id=turn.previous,
            conversation=schema.ConversationId(id=turn.conversation) if turn.conversation is not None else None,
            store=turn.place is not None,
        )

    async def whole(self) -> schema.Response:
        return await self._kept(self._ended(self._parts.feed_all(await whole(self._generation))))

    async def _kept(self, response: schema.Response) -> schema.Response:
        response.store = await self._body.turn.keep(response.id, response)
        return response

    async def events(self) -> AsyncGenerator[bytes]:
        with closing(self._generation) as generation:
            try:
                yield self._encoded(
                    schema.ResponseCreated(response=self._response), schema.ResponseInProgress(response=self._response)
                )
                async for delta in generation:
                    events = [event for change in self._parts.feed(delta) for event in self._events(change)]
                    if delta.progress is not None:
                        progress = native_progress(delta.progress)
                        events = [schema.ResponseInProgress(response=self._response, prompt_progress=progress)]
                    if delta.finish is not None:
                        response = self._ended(delta)
                        response.receipt = await self._receipt()
                        response = await self._kept(response)
                        ended = (
                            schema.ResponseCompleted if response.status == "completed" else schema.ResponseIncomplete
                        )
                        events.append(ended(response=response))
                    if events and delta.usage is not None:  # at the end, or after every token if requested
                        assert not isinstance(events[-1], schema.ErrorEvent)
                        events[-1].timings = timings_of(delta.timings, delta.usage)
                    yield self._encoded(*events)
            except PaddockError as error:  # error events of this API have a sequence number
                note_failure(error, in_stream=True)
                yield self._encoded(struct_from(schema.ErrorEvent, error, **error_body(error)))

    def _encoded(self, *events: schema.Event) -> bytes:
        written = bytearray()
        for event in events:
            event.sequence_number = next(self._numbers)
            written += SSE.event(_encode(event), str(event.__struct_config__.tag))
        return bytes(written)

    def _ended(self, last: Delta) -> schema.Response:
        assert last.usage is not None, "with the last delta"
        cut = last.finish == "length"
        response = msgspec.structs.replace(
            self._response,
            status="incomplete" if cut else "completed",
            completed_at=int(time.time()),
            incomplete_details=schema.IncompleteDetails() if cut else None,
            output=[self._item(part, "completed") for part in self._parts.kept],
            usage=_usage(last.usage),
            malformed_tool_call=True if last.malformed else msgspec.UNSET,
            cache_report=one_cache_report(self._body, self._generation),
        )
        if cut and response.output:
            response.output[-1].status = "incomplete"
        return response

    # ── parts as items ───────────────────────────────────────────────────────────────────────────────────────────────

    def _item(self, part: Part, status: schema.Status) -> schema.OutputItem:
        id = self._id(part)
        match part.kind:
            case "text":
                return schema.OutputMessage(id=id, status=status, content=[_text(part)])
            case "reasoning":
                return schema.OutputReasoning(id=id, status=status, content=[schema.ReasoningText(text=part.text)])
            case "call":
                namespace, name = self._functions.get(part.name, (None, part.name))
                return schema.OutputCall(
                    id=id,
                    status=status,
                    call_id=part.call_id,
                    name=name,
                    namespace=namespace or msgspec.UNSET,
                    arguments=part.text,
                )

    def _id(self, part: Part) -> str:
        prefix = {"text": "msg", "reasoning": "rs", "call": "fc"}[part.kind]
        return f"{prefix}_{self._mark}{part.index}"

    def _events(self, change: Change) -> Iterator[schema.Event]:
        part = change.part
        at: dict[str, Any] = {"item_id": self._id(part), "output_index": part.index}
        match change.kind:
            case "begins":
                item = self._item(part.beginning(), "in_progress")
                if not isinstance(item, schema.OutputCall):
                    (content,) = item.content
                    item.content = []
                    yield schema.ItemAdded(output_index=part.index, item=item)
                    yield schema.PartAdded(part=content, **at)
                else:
                    yield schema.ItemAdded(output_index=part.index, item=item)
            case "grows" if part.kind == "text":
                yield schema.TextDelta(delta=change.text, logprobs=token_logprobs(change.logprobs), **at)
            case "grows" if part.kind == "reasoning":
                yield schema.ReasoningDelta(delta=change.text, **at)
            case "grows":
                yield schema.ArgumentsDelta(delta=change.text, **at)
            case "ends":
                item = self._item(part, "incomplete" if part.withdrawn else "completed")
                if isinstance(item, schema.OutputCall):
                    if not part.withdrawn:
                        yield schema.ArgumentsDone(name=item.name, arguments=part.text, **at)
                else:
                    (content,) = item.content
                    if isinstance(content, schema.OutputText):
                        yield schema.TextDone(text=content.text, logprobs=content.logprobs, **at)
                    else:
                        yield schema.ReasoningDone(text=content.text, **at)
                    yield schema.PartDone(part=content, **at)
                yield schema.ItemDone(output_index=part.index, item=item)


def _text(part: Part) -> schema.OutputText:
    return schema.OutputText(text=part.text, logprobs=token_logprobs(part.logprobs))


def _usage(usage: Usage) -> schema.ResponseUsage:
    return schema.ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=schema.InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=schema.OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _dumped(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value
