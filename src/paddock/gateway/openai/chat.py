"""A chat completion: request → generation → one body, or a stream of chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from functools import cache
from typing import Any

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
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
)
from paddock.gateway.responses import error_event
from paddock.types import ChatPrompt, GenerateRequest, TextLogprobs, Usage
from paddock.wire import Delta

_encode = msgspec.json.Encoder().encode
_PLACE = "\0text\0"


def to_generate(body: ChatCompletionRequest, request_id: int) -> GenerateRequest:
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    for message in messages:
        if message["role"] == "developer":  # OpenAI's newer name for it; templates know the older one
            message["role"] = "system"
    probabilities = {"n_probs": body.top_logprobs or 0} if body.logprobs else {}
    return GenerateRequest(
        id=request_id,
        prompt=ChatPrompt(messages),
        sampling=body.sampling(**probabilities, post_sampling_probs=bool(body.post_sampling_probs)),
        max_tokens=body.limit,
        stop=tuple(body.stop or ()),
        n=body.n or 1,
        cache_prompt=body.cache_prompt is not False,
        id_slot=None if body.id_slot == -1 else body.id_slot,
        deterministic=bool(body.deterministic),
    )


class ChatAnswer:
    """One answer on its way out, under one id and one name."""

    def __init__(self, body: ChatCompletionRequest, model: str, fingerprint: str) -> None:
        self._id = f"chatcmpl-{secrets.token_urlsafe(18)}"
        self._created = int(time.time())
        self._model = body.model or model
        self._fingerprint = fingerprint
        self._n = body.n or 1
        self._around_text = cache(self._render_around_text)
        self._include_usage = body.stream_options is not None and body.stream_options.include_usage

    async def whole(self, generation: Generation) -> ChatCompletion:
        parts: list[list[Delta]] = [[] for _ in range(self._n)]
        usages: list[Usage] = []
        with closing(generation):
            async for delta in generation:
                parts[delta.index].append(delta)
                if delta.usage is not None:
                    usages.append(delta.usage)
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[_choice(index, deltas) for index, deltas in enumerate(parts)],
            usage=_usage(usages),
        )

    async def events(self, generation: Generation) -> AsyncGenerator[bytes]:
        """Server-sent events. `[DONE]` comes after a complete answer only; an error event ends a broken one."""
        usages: list[Usage] = []
        greeted: set[int] = set()
        with closing(generation):
            try:
                async for delta in generation:
                    event = b""
                    if delta.index not in greeted:
                        greeted.add(delta.index)
                        event = self._event(delta.index, ChoiceDelta(role="assistant"))
                    if delta.logprobs:
                        event += self._event(delta.index, ChoiceDelta(content=delta.text), logprobs=delta.logprobs)
                    elif delta.text:
                        before, after = self._around_text(delta.index)
                        event += before + _encode(delta.text) + after
                    if delta.finish is not None and delta.usage is not None:
                        event += self._event(delta.index, ChoiceDelta(), finish=delta.finish)
                        usages.append(delta.usage)
                        if len(usages) == self._n:
                            if self._include_usage:
                                event += self._frame([], _usage(usages))
                            event += b"data: [DONE]\n\n"
                    yield event
            except PaddockError as error:
                yield error_event(error)

    def _event(
        self, index: int, delta: ChoiceDelta, *, finish: str | None = None, logprobs: list[TextLogprobs] | None = None
    ) -> bytes:
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=msgspec.UNSET if logprobs is None else _logprobs(logprobs),
            finish_reason=finish,
        )
        return self._frame([choice], None if self._include_usage else msgspec.UNSET)

    def _render_around_text(self, index: int) -> tuple[bytes, bytes]:
        """What an event with text has before and after it: everything else is the same in each."""
        before, _, after = self._event(index, ChoiceDelta(content=_PLACE)).partition(_encode(_PLACE))
        return before, after

    def _frame(self, choices: list[ChunkChoice], usage: CompletionUsage | msgspec.UnsetType | None) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=usage,
        )
        return b"data: " + _encode(chunk) + b"\n\n"


def _choice(index: int, deltas: list[Delta]) -> Choice:
    logprobs = [item for delta in deltas for item in delta.logprobs or ()]
    finish = deltas[-1].finish if deltas else None
    if finish is None:
        raise PaddockError("the answer ended without an end")
    return Choice(
        index=index,
        message=AssistantMessage(content="".join(delta.text for delta in deltas)),
        logprobs=_logprobs(logprobs) if logprobs else None,
        finish_reason=finish,
    )


def _logprobs(items: list[TextLogprobs]) -> ChoiceLogprobs:
    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    return ChoiceLogprobs(
        content=[
            TokenLogprob(
                **one(item.piece, item.logprob),
                top_logprobs=[TopLogprob(**one(piece, logprob)) for _, piece, logprob in item.top],
            )
            for item in items
        ]
    )


def _usage(answers: list[Usage]) -> CompletionUsage:
    """The prompt counts once, however many answers were given to it."""
    prompt, completion = answers[0].prompt_tokens, sum(usage.completion_tokens for usage in answers)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=min(usage.cached_tokens for usage in answers)),
    )
