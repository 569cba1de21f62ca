"""The answers of `/api/chat` and `/api/generate`: lines of JSON, or one object."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from typing import Any

import msgspec

from paddock.fleet import Generation
from paddock.gateway.dialects.ollama.durations import nanoseconds, now
from paddock.gateway.dialects.ollama.requests import OllamaFields
from paddock.gateway.dialects.ollama.schema import (
    AssistantMessage,
    CalledFunction,
    ChatLine,
    GenerateLine,
    ToolCall,
    logprobs_of,
)
from paddock.gateway.generation.generations import Call, FinishedAnswer, collect, one_cache_report
from paddock.gateway.generation.parts import Parts
from paddock.gateway.http.framing import NDJSON
from paddock.types import TextLogprobs, Timings
from paddock.wire.messages import Delta

_encode = msgspec.json.Encoder().encode
Line = ChatLine | GenerateLine


class Writer:
    """What both endpoints write alike. `name` is the model's name as it was requested."""

    def __init__(self, body: OllamaFields, name: str, began: float, generations: Sequence[Generation]) -> None:
        """`began` is when the request arrived, on the monotonic clock."""
        (self._generation,) = generations
        self._body = body
        self._name = name
        self._began = began

    async def whole(self) -> Line:
        (answer,) = await collect(self._generation, 1)
        return self._line(
            answer.text,
            answer.reasoning,
            answer.logprobs,
            done=True,
            calls=_calls(answer.calls),
            **self._ending(answer, answer.tokens),
        )

    async def events(self) -> AsyncGenerator[bytes]:
        """Calls are sent when the answer is complete: what begins like one may turn out to be text."""
        parts = Parts()
        tokens: list[int] = []
        with closing(self._generation) as generation:
            async for delta in generation:
                for _ in parts.feed(delta):
                    pass
                tokens += delta.tokens or ()
                lines: list[Line] = []
                if delta.reasoning:
                    lines.append(self._line("", delta.reasoning, None))
                if delta.text or delta.logprobs:
                    lines.append(self._line(delta.text, "", delta.logprobs))
                if delta.finish is not None:
                    lines += self._last(delta, parts, tokens)
                yield b"".join(NDJSON.event(_encode(line)) for line in lines)

    def _last(self, delta: Delta, parts: Parts, tokens: list[int]) -> list[Line]:
        called = [Call(part.call_id, part.name, part.text) for part in parts.kept if part.kind == "call"]
        done = self._line("", "", None, done=True, **self._ending(FinishedAnswer.of([delta]), tokens))
        return [*([self._line("", "", None, calls=_calls(called))] if called else []), done]

    def _ending(self, answer: FinishedAnswer, tokens: list[int]) -> dict[str, Any]:
        timings = answer.last.timings or Timings()
        return {
            "done_reason": answer.finish,
            "total_duration": nanoseconds(time.monotonic() - self._began),
            "load_duration": nanoseconds(self._generation.load_seconds),
            "prompt_eval_count": answer.usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.prompt),
            "eval_count": answer.usage.completion_tokens,
            "eval_duration": nanoseconds(timings.generation),
            "cache_report": one_cache_report(self._body, self._generation),
        }

    def _line(
        self,
        text: str,
        thinking: str,
        logprobs: list[TextLogprobs] | None,
        *,
        done: bool = False,
        calls: Sequence[ToolCall] = (),
        **more: Any,
    ) -> Line:
        raise NotImplementedError


class ChatWriter(Writer):
    def _line(
        self,
        text: str,
        thinking: str,
        logprobs: list[TextLogprobs] | None,
        *,
        done: bool = False,
        calls: Sequence[ToolCall] = (),
        **more: Any,
    ) -> ChatLine:
        return ChatLine(
            model=self._name,
            created_at=now(),
            message=AssistantMessage(role="assistant", content=text, thinking=thinking, tool_calls=list(calls)),
            done=done,
            logprobs=logprobs_of(logprobs),
            **more,
        )


class GenerateWriter(Writer):
    """With `has_context`, the end of the answer has the tokens of the whole exchange."""

    def __init__(
        self, body: OllamaFields, name: str, began: float, generations: Sequence[Generation], *, has_context: bool
    ) -> None:
        super().__init__(body, name, began, generations)
        self._has_context = has_context

    def _ending(self, answer: FinishedAnswer, tokens: list[int]) -> dict[str, Any]:
        prompt = [token for token, _ in self._generation.prompt] if self._has_context else []
        return super()._ending(answer, tokens) | ({"context": prompt + tokens} if self._has_context else {})

    def _line(
        self,
        text: str,
        thinking: str,
        logprobs: list[TextLogprobs] | None,
        *,
        done: bool = False,
        calls: Sequence[ToolCall] = (),
        **more: Any,
    ) -> GenerateLine:
        return GenerateLine(
            model=self._name,
            created_at=now(),
            response=text,
            thinking=thinking,
            done=done,
            logprobs=logprobs_of(logprobs),
            **more,
        )


def _calls(calls: Sequence[Call]) -> list[ToolCall]:
    """The complete calls. The end of an answer that reached its limit may be half a call."""
    found = [(call, arguments) for call in calls if (arguments := _arguments(call.arguments)) is not None]
    return [
        ToolCall(id=call.id, function=CalledFunction(index=index, name=call.name, arguments=arguments))
        for index, (call, arguments) in enumerate(found)
    ]


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None
