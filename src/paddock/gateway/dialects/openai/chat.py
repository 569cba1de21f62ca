"""A chat completion: request → generation → one body, or a stream of chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from functools import cache
from typing import Any

import msgspec

from paddock.fleet import Generation
from paddock.gateway.dialects.openai.answers import (
    AssistantMessage,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    FunctionDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallFunction,
    TopLogprob,
    usage_of,
)
from paddock.gateway.dialects.openai.requests import ChatCompletionRequest
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import Call, Written, collect
from paddock.gateway.generation.timings import (
    NativeProgress,
    NativeTimings,
    native_progress,
    timings_of,
    timings_of_all,
)
from paddock.gateway.http.framing import SSE
from paddock.types import CallDelta, FinishReason, GenerateRequest, TextLogprobs, Timings, Usage

_encode = msgspec.json.Encoder().encode
_PLACEHOLDER = "\0text\0"
DONE = SSE.event(b"[DONE]")


def parse(body: ChatCompletionRequest, context: RequestContext) -> list[GenerateRequest]:
    n_probs = body.top_logprobs or 0 if body.logprobs else -1
    return [body.request(context, body.prompt(), max_tokens=body.limit, n_probs=n_probs, n=body.n or 1)]


class ChatAnswer:
    def __init__(self, body: ChatCompletionRequest, model: str, generations: Sequence[Generation]) -> None:
        (generation,) = generations
        self._id = f"chatcmpl-{secrets.token_urlsafe(18)}"
        self._job_id = body.job_id or msgspec.UNSET
        self._created = int(time.time())
        self._model = body.model or model
        self._generation = generation
        self._fingerprint = generation.fingerprint
        self._n = body.n or 1
        self._around_text = cache(self._render_around_text)
        self._include_usage = body.include_usage
        self._timings_per_token = bool(body.timings_per_token)

    async def whole(self) -> ChatCompletion:
        answers = await collect(self._generation, self._n)
        return ChatCompletion(
            id=self._id,
            job_id=self._job_id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[_choice(index, answer) for index, answer in enumerate(answers)],
            usage=usage_of([[answer.usage for answer in answers]]),
            timings=timings_of_all([(answer.last.timings, answer.usage) for answer in answers]),
        )

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
                    event = self._event(delta.index, ChoiceDelta(role="assistant"))
                if delta.progress is not None:
                    choice = ChunkChoice(index=delta.index, delta=ChoiceDelta())
                    event += self._frame([choice], progress=native_progress(delta.progress))
                if delta.logprobs or (delta.text and self._timings_per_token):
                    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
                    if self._timings_per_token and delta.usage is not None:
                        timings = timings_of(delta.timings, delta.usage)
                    event += self._event(
                        delta.index, ChoiceDelta(content=delta.text), logprobs=delta.logprobs, timings=timings
                    )
                elif delta.text:
                    before, after = self._around_text(delta.index)
                    event += before + _encode(delta.text) + after
                if delta.reasoning:
                    event += self._event(delta.index, ChoiceDelta(reasoning_content=delta.reasoning))
                for part in delta.calls or ():
                    (calling.discard if part.withdrawn else calling.add)((delta.index, part.index))
                    if not part.withdrawn:
                        event += self._event(delta.index, ChoiceDelta(tool_calls=[_call_delta(part)]))
                if delta.finish is not None and delta.usage is not None:
                    ended.append((delta.timings, delta.usage))
                    last = len(ended) == self._n
                    timings = timings_of_all(ended) if last and not self._include_usage else msgspec.UNSET
                    called = any(index == delta.index for index, _ in calling)
                    event += self._event(
                        delta.index,
                        ChoiceDelta(malformed_tool_call=delta.malformed),
                        finish=_finish_reason(delta.finish, called=called),
                        timings=timings,
                    )
                    if last:
                        if self._include_usage:
                            usage = usage_of([[usage for _, usage in ended]])
                            event += self._frame([], usage=usage, timings=timings_of_all(ended))
                        event += DONE
                yield event

    def _event(
        self,
        index: int,
        delta: ChoiceDelta,
        *,
        finish: str | None = None,
        logprobs: list[TextLogprobs] | None = None,
        timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=msgspec.UNSET if logprobs is None else _logprobs(logprobs),
            finish_reason=finish,
        )
        return self._frame([choice], timings=timings)

    def _render_around_text(self, index: int) -> tuple[bytes, bytes]:
        """What surrounds the text in an event. It is the same in each, so it is encoded once."""
        before, _, after = self._event(index, ChoiceDelta(content=_PLACEHOLDER)).partition(_encode(_PLACEHOLDER))
        return before, after

    def _frame(
        self,
        choices: list[ChunkChoice],
        *,
        usage: CompletionUsage | None = None,
        timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET,
        progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id,
            job_id=self._job_id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=usage if self._include_usage else msgspec.UNSET,
            timings=timings,
            prompt_progress=progress,
        )
        return SSE.event(_encode(chunk))


def _choice(index: int, answer: Written) -> Choice:
    return Choice(
        index=index,
        message=AssistantMessage(
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


def _call(call: Call) -> ToolCall:
    return ToolCall(id=call.id, function=ToolCallFunction(name=call.name, arguments=call.arguments))


def _call_delta(part: CallDelta) -> ToolCallDelta:
    if not part.name:
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.arguments))
    function = FunctionDelta(name=part.name, arguments=part.arguments)
    return ToolCallDelta(index=part.index, id=part.id, type="function", function=function)


def _logprobs(items: list[TextLogprobs]) -> ChoiceLogprobs:
    return ChoiceLogprobs(content=token_logprobs(items))


def token_logprobs(items: list[TextLogprobs]) -> list[TokenLogprob]:
    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    return [
        TokenLogprob(
            **one(item.piece, item.logprob),
            top_logprobs=[TopLogprob(**one(piece, logprob)) for _, piece, logprob in item.top],
        )
        for item in items
    ]
