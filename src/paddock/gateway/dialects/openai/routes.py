from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.fleet import Fleet
from paddock.gateway.dialects.openai import completions
from paddock.gateway.dialects.openai.chat import ChatAnswer, to_generate
from paddock.gateway.dialects.openai.schema import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
)
from paddock.gateway.generation.job_ids import read_generation
from paddock.gateway.generation.respond import respond
from paddock.gateway.http.openapi import describe


def openai_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.post(
        "/chat/completions",
        **describe(ChatCompletion, body=ChatCompletionRequest, events=(ChatCompletionChunk,), done=True),
    )
    async def create_chat_completion(request: Request) -> Response:
        """What the model says next in a conversation."""
        body = await read_generation(request, ChatCompletionRequest, limit=max_body)
        requests = [partial(to_generate, body)]
        return await respond(request, fleet, body, requests, lambda model, started: ChatAnswer(body, model, started[0]))

    @router.post("/completions", **describe(Completion, body=CompletionRequest, events=(Completion,), done=True))
    async def create_completion(request: Request) -> Response:
        """How a text goes on."""
        body = await read_generation(request, CompletionRequest, limit=max_body)
        requests = [partial(completions.to_generate, body, prompt) for prompt in body.prompt]
        return await respond(request, fleet, body, requests, partial(completions.CompletionAnswer, body))

    return router
