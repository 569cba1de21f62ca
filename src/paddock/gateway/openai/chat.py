"""A chat completion: request → generation → one body, or a stream of chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import closing

import msgspec

from paddock.errors import PaddockError
from paddock.fleet import Generation
from paddock.gateway.openai.schema import (
    AssistantMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Choice,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    PromptTokensDetails,
)
from paddock.gateway.responses import error_event
from paddock.types import ChatPrompt, GenerateRequest, SamplingParams, Usage

_encode = msgspec.json.Encoder().encode


def to_generate(body: ChatCompletionRequest, request_id: int) -> GenerateRequest:
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    for message in messages:
        if message["role"] == "developer":  # OpenAI's newer name for it; templates know the older one
            message["role"] = "system"
    return GenerateRequest(
        id=request_id,
        prompt=ChatPrompt(messages),
        sampling=_sampling(body),
        max_tokens=body.limit,
        stop=tuple(body.stop or ()),
    )


def _sampling(body: ChatCompletionRequest) -> SamplingParams:
    given = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p", "seed")
        if (value := getattr(body, name)) is not None
    }
    if body.do_sample is False:
        given["temperature"] = 0.0
    if given.get("seed") == -1:  # llama.cpp's way of asking for a random one
        del given["seed"]
    return SamplingParams(**given)


class ChatAnswer:
    """One answer on its way out, under one id and one name."""

    def __init__(self, body: ChatCompletionRequest, model: str) -> None:
        self._id = f"chatcmpl-{secrets.token_urlsafe(18)}"
        self._created = int(time.time())
        self._model = body.model or model
        self._include_usage = body.stream_options is not None and body.stream_options.include_usage

    async def whole(self, generation: Generation) -> ChatCompletion:
        parts: list[str] = []
        with closing(generation):
            async for delta in generation:
                parts.append(delta.text)
                if delta.finish is not None and delta.usage is not None:
                    message = AssistantMessage(content="".join(parts))
                    return ChatCompletion(
                        id=self._id,
                        created=self._created,
                        model=self._model,
                        choices=[Choice(index=0, message=message, finish_reason=delta.finish)],
                        usage=_usage(delta.usage),
                    )
        raise PaddockError("the answer ended without an end")

    async def events(self, generation: Generation) -> AsyncGenerator[bytes]:
        """Server-sent events. `[DONE]` comes after a complete answer only; an error event ends a broken one."""
        with closing(generation):
            first = True
            try:
                async for delta in generation:
                    event = b""
                    if first:
                        first = False
                        event = self._event(ChoiceDelta(role="assistant"))
                    if delta.text:
                        event += self._event(ChoiceDelta(content=delta.text))
                    if delta.finish is not None and delta.usage is not None:
                        event += self._event(ChoiceDelta(), delta.finish)
                        if self._include_usage:
                            event += self._usage_event(delta.usage)
                        event += b"data: [DONE]\n\n"
                    yield event
            except PaddockError as error:
                yield error_event(error)

    def _event(self, delta: ChoiceDelta, finish: str | None = None) -> bytes:
        choice = ChunkChoice(index=0, delta=delta, finish_reason=finish)
        return self._frame([choice], None if self._include_usage else msgspec.UNSET)

    def _usage_event(self, usage: Usage) -> bytes:
        return self._frame([], _usage(usage))

    def _frame(self, choices: list[ChunkChoice], usage: CompletionUsage | msgspec.UnsetType | None) -> bytes:
        chunk = ChatCompletionChunk(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)
        return b"data: " + _encode(chunk) + b"\n\n"


def _usage(usage: Usage) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )
