"""A chat completion: request → generation → one body, or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from functools import cache
from typing import Any

import msgspec

from paddock.fleet import Generation
from paddock.gateway.dialects.openai import schema
from paddock.gateway.dialects.openai.requests import ChatCompletionRequest
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import Call, FinishedAnswer, collect, one_cache_report
from paddock.gateway.generation.native import NativeCompletion, NativeWriter
from paddock.gateway.generation.receipts import StreamReceipt, no_receipt
from paddock.gateway.generation.timings import native_progress, timings_of_all, timings_so_far
from paddock.gateway.http.framing import SSE
from paddock.types import CallDelta, FinishReason, GenerateRequest, TextLogprobs, Timings, Usage
from paddock.wire.messages import Delta

_encode = msgspec.json.Encoder().encode
_PLACEHOLDER = "\0text\0"
DONE = SSE.event(b"[DONE]")


def parse(body: ChatCompletionRequest, context: RequestContext) -> list[GenerateRequest]:
    n_probs = body.top_logprobs or 0 if body.logprobs else -1
    return [
        body.request(
            context, body.prompt(), max_tokens=body.limit, n_probs=n_probs, n=body.n or 1, echo=bool(body.verbose)
        )
    ]


class ChatAnswer:
    def __init__(
        self,
        body: ChatCompletionRequest,
        model: str,
        generations: Sequence[Generation],
        receipt: StreamReceipt = no_receipt,
    ) -> None:
        (self._generation,) = generations
        self._head = schema.new_head("chatcmpl", body, model) | {"system_fingerprint": self._generation.fingerprint}
        self._n = body.n or 1
        self._around_text = cache(self._render_around_text)
        self._include_usage = body.include_usage
        self._timings_per_token = body.timings_per_token
        self._verbose = NativeWriter(body, model, limit=body.limit, n_probs=body.top_logprobs or 0)
        self._is_verbose = bool(body.verbose)
        self._body = body
        self._receipt = receipt

    async def whole(self) -> schema.ChatCompletion:
        answers = await collect(self._generation, self._n)
        return schema.ChatCompletion(
            **self._head,
            choices=[_choice(index, answer) for index, answer in enumerate(answers)],
            usage=schema.usage_of([[answer.usage for answer in answers]]),
            timings=timings_of_all([(answer.last.timings, answer.usage) for answer in answers]),
            cache_report=one_cache_report(self._body, self._generation),
            verbose=self._native(0, answers[0]),
        )

    def _native(self, index: int, answer: FinishedAnswer) -> NativeCompletion | msgspec.UnsetType:
        return self._verbose.final(self._generation, index, answer) if self._is_verbose else msgspec.UNSET

    async def events(self) -> AsyncGenerator[bytes]:
        """`[DONE]` follows complete answers only."""
        ended: list[tuple[Timings | None, Usage]] = []
        started: set[int] = set()
        calling: set[tuple[int, int]] = set()
        with closing(self._generation) as generation:
            async for delta in generation:
                event = b""
                if delta.index not in started:
                    started.add(delta.index)
                    event = self._event(delta.index, schema.ChoiceDelta(role="assistant"))
                if delta.progress is not None:
                    progress = native_progress(delta.progress)
                    event += self._event(
                        delta.index,
                        schema.ChoiceDelta(),
                        prompt_progress=progress,
                        timings=timings_so_far(delta, self._timings_per_token),
                    )
                for part in delta.calls or ():
                    (calling.discard if part.withdrawn else calling.add)((delta.index, part.index))
                event += self._parts(delta)
                if delta.finish is not None and delta.usage is not None:
                    ended.append((delta.timings, delta.usage))
                    last = len(ended) == self._n
                    ending: dict[str, Any] = {}
                    if last:
                        report = one_cache_report(self._body, generation)
                        ending = {"timings": timings_of_all(ended), "cache_report": report}
                        ending["receipt"] = await self._receipt()
                    called = any(index == delta.index for index, _ in calling)
                    event += self._event(
                        delta.index,
                        schema.ChoiceDelta(malformed_tool_call=delta.malformed),
                        finish=_finish_reason(delta.finish, called=called),
                        verbose=self._native(delta.index, FinishedAnswer.of([delta])),
                        **({} if self._include_usage else ending),
                    )
                    if last:
                        if self._include_usage:
                            usage = schema.usage_of([[usage for _, usage in ended]])
                            event += self._frame([], usage=usage, **ending)
                        event += DONE
                yield event

    def _parts(self, delta: Delta) -> bytes:
        """The text, the reasoning and the calls of a delta. The first event has the logprobs, the last the timings."""
        if delta.text and not (delta.logprobs or delta.reasoning or delta.calls or self._timings_per_token):
            before, after = self._around_text(delta.index)
            return before + _encode(delta.text) + after
        parts = [schema.ChoiceDelta(content=delta.text)] if delta.text or delta.logprobs else []
        if delta.reasoning:
            parts.append(schema.ChoiceDelta(reasoning_content=delta.reasoning))
        for call in delta.calls or ():
            if not call.withdrawn:
                parts.append(schema.ChoiceDelta(tool_calls=[_call_delta(call)]))
        timings = timings_so_far(delta, self._timings_per_token)
        return b"".join(
            self._event(
                delta.index,
                part,
                logprobs=delta.logprobs if part is parts[0] else None,
                timings=timings if part is parts[-1] else msgspec.UNSET,
            )
            for part in parts
        )

    def _event(
        self,
        index: int,
        delta: schema.ChoiceDelta,
        *,
        finish: str | None = None,
        logprobs: list[TextLogprobs] | None = None,
        **more: Any,
    ) -> bytes:
        choice = schema.ChunkChoice(
            index=index,
            delta=delta,
            logprobs=msgspec.UNSET if logprobs is None else _logprobs(logprobs),
            finish_reason=finish,
        )
        return self._frame([choice], **more)

    def _render_around_text(self, index: int) -> tuple[bytes, bytes]:
        """What surrounds the text in an event. It is the same in each, so it is encoded once."""
        before, _, after = self._event(index, schema.ChoiceDelta(content=_PLACEHOLDER)).partition(_encode(_PLACEHOLDER))
        return before, after

    def _frame(
        self, choices: list[schema.ChunkChoice], usage: schema.CompletionUsage | None = None, **more: Any
    ) -> bytes:
        shown = usage if self._include_usage else msgspec.UNSET
        chunk = schema.ChatCompletionChunk(**self._head, choices=choices, usage=shown, **more)
        return SSE.event(_encode(chunk))


def _choice(index: int, answer: FinishedAnswer) -> schema.Choice:
    return schema.Choice(
        index=index,
        message=schema.AssistantMessage(
            content=answer.text or (None if answer.calls else ""),
            reasoning_content=answer.reasoning or msgspec.UNSET,
            tool_calls=[_call(call) for call in answer.calls] or msgspec.UNSET,
            malformed_tool_call=True if answer.last.malformed else msgspec.UNSET,
        ),
        logprobs=_logprobs(answer.logprobs) if answer.logprobs else None,
        finish_reason=_finish_reason(answer.finish, called=bool(answer.calls)),
    )


def _finish_reason(finish: FinishReason, *, called: bool) -> str:
    return "tool_calls" if called and finish == "stop" else finish


def _call(call: Call) -> schema.ToolCall:
    return schema.ToolCall(id=call.id, function=schema.ToolCallFunction(name=call.name, arguments=call.arguments))


def _call_delta(part: CallDelta) -> schema.ToolCallDelta:
    if not part.name:
        return schema.ToolCallDelta(index=part.index, function=schema.FunctionDelta(arguments=part.arguments))
    function = schema.FunctionDelta(name=part.name, arguments=part.arguments)
    return schema.ToolCallDelta(index=part.index, id=part.id, type="function", function=function)


def _logprobs(items: list[TextLogprobs]) -> schema.ChoiceLogprobs:
    return schema.ChoiceLogprobs(content=token_logprobs(items))


def token_logprobs(items: list[TextLogprobs]) -> list[schema.TokenLogprob]:
    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    return [
        schema.TokenLogprob(
            **one(item.piece, item.logprob),
            top_logprobs=[schema.TopLogprob(**one(piece, logprob)) for _, piece, logprob in item.top],
        )
        for item in items
    ]
