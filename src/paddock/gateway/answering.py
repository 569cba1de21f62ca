"""From requests to the response: one body, or a stream that may begin before the model does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import Response

from paddock.errors import PaddockError
from paddock.fleet import Fleet, Generation, Model
from paddock.gateway.conversation import in_the_words_of
from paddock.gateway.fields import GenerationFields
from paddock.gateway.generation import start_all
from paddock.gateway.listening import while_listening
from paddock.gateway.responses import JSON, error_event
from paddock.gateway.sse import COMMENT, EventStream
from paddock.types import GenerateRequest

_PATIENCE = 2.0
"""Seconds for which a stream is held back, so that what can be refused at once is refused with a status."""
_TOLD_EVERY = 2.0
_NO_WORDS: Mapping[str, str] = {}


class Answer(Protocol):
    """A dialect's way of telling what generations say."""

    async def whole(self) -> Any: ...
    def events(self) -> AsyncGenerator[bytes]: ...


async def respond(
    request: Request,
    body: GenerationFields,
    fleet: Fleet,
    model: Model,
    requests: Sequence[Callable[[int], GenerateRequest]],
    answer: Callable[[Sequence[Generation]], Answer],
    *,
    words: Mapping[str, str] = _NO_WORDS,
    sign_of_life: bytes = COMMENT,
) -> Response:
    """Have the requests generated, and the answer told as the body asks for it.

    A stream whose model takes its time to load begins with comments that say how far it is; what goes wrong then comes
    as an event. `words` are what the dialect calls fields that errors name.
    """

    async def start() -> Sequence[Generation]:
        with in_the_words_of(words):
            return await start_all(fleet, model, requests)

    if not body.stream:

        async def whole() -> Any:
            return await answer(await start()).whole()

        return JSON(await while_listening(request, whole()))
    started = asyncio.ensure_future(start())
    try:
        await asyncio.wait({started}, timeout=_PATIENCE)
    except asyncio.CancelledError:
        _abandon(started)
        raise
    if started.done():
        return EventStream(answer(started.result()).events(), body.sse_ping_interval, sign_of_life)
    late = _late(started, answer, lambda: fleet.progress(model), request.url.path)
    return EventStream(late, body.sse_ping_interval, sign_of_life)


async def _late(
    started: asyncio.Future[Sequence[Generation]],
    answer: Callable[[Sequence[Generation]], Answer],
    progress: Callable[[], str],
    path: str,
) -> AsyncGenerator[bytes]:
    try:
        while not started.done():
            yield f": {progress()}\n\n".encode()
            await asyncio.wait({started}, timeout=_TOLD_EVERY)
        generations = started.result()
    except PaddockError as error:
        yield error_event(error, path)
        return
    except BaseException:
        _abandon(started)
        raise
    async with aclosing(answer(generations).events()) as events:
        async for event in events:
            yield event


def _abandon(started: asyncio.Future[Sequence[Generation]]) -> None:
    """The client is gone. What has been started all the same is ended as soon as it is known."""

    def close(done: asyncio.Future[Sequence[Generation]]) -> None:
        if not done.cancelled() and done.exception() is None:
            for generation in done.result():
                generation.close()

    started.cancel()
    started.add_done_callback(close)
