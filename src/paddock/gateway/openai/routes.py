from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.fleet import Fleet
from paddock.gateway.bodies import read_body
from paddock.gateway.listening import while_listening
from paddock.gateway.openai import completions
from paddock.gateway.openai.chat import ChatAnswer, to_generate
from paddock.gateway.openai.schema import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
)
from paddock.gateway.openapi import describe
from paddock.gateway.responses import JSON
from paddock.gateway.sse import EventStream


def openai_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.post(
        "/chat/completions",
        **describe(ChatCompletion, body=ChatCompletionRequest, events=(ChatCompletionChunk,), done=True),
    )
    async def create_chat_completion(request: Request) -> Response:
        """What the model says next in a conversation."""
        body = await read_body(request, ChatCompletionRequest, limit=max_body)
        model = fleet.catalogue.find(body.model)
        generation = await fleet.generate(model, lambda id: to_generate(body, id))
        answer = ChatAnswer(body, model.name, generation.fingerprint)
        if body.stream:
            return EventStream(answer.events(generation), body.sse_ping_interval)
        return JSON(await while_listening(request, answer.whole(generation)))

    @router.post("/completions", **describe(Completion, body=CompletionRequest, events=(Completion,), done=True))
    async def create_completion(request: Request) -> Response:
        """How a text goes on."""
        body = await read_body(request, CompletionRequest, limit=max_body)
        model = fleet.catalogue.find(body.model)
        answer = completions.CompletionAnswer(body, model.name, await completions.start(body, fleet, model))
        if body.stream:
            return EventStream(answer.events(), body.sse_ping_interval)
        return JSON(await while_listening(request, answer.whole()))

    return router
