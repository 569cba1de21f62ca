from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.fleet import Fleet
from paddock.gateway.auth.caller import model_for
from paddock.gateway.dialects.anthropic.answer import PATH, PING, MessageAnswer, to_generate
from paddock.gateway.dialects.anthropic.request import CountTokensRequest, MessagesRequest
from paddock.gateway.dialects.anthropic.schema import Event, Failure, Message, TokenCount
from paddock.gateway.generation.conversation import in_the_words_of
from paddock.gateway.generation.job_ids import read_generation
from paddock.gateway.generation.respond import respond
from paddock.gateway.generation.text_questions import count_tokens
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_WORDS = {"reasoning_effort": "thinking"}


def anthropic_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix=PATH, tags=["anthropic"])

    @router.post(
        "", **describe(Message, body=MessagesRequest, events=(Event,), named=True, error=Failure, prefix="Messages")
    )
    async def create_message(request: Request) -> Response:
        """What the model says next in a conversation, in Anthropic's dialect."""
        body = await read_generation(request, MessagesRequest, limit=max_body)
        requests = [partial(to_generate, body)]
        return await respond(
            request,
            fleet,
            body,
            requests,
            lambda model, started: MessageAnswer(body, model, started[0]),
            words=_WORDS,
            sign_of_life=PING,
        )

    @router.post("/count_tokens", **describe(TokenCount, body=CountTokensRequest, error=Failure, prefix="Messages"))
    async def count_message_tokens(request: Request) -> Response:
        """How many tokens a request's conversation has. Generates nothing."""
        body = await read_body(request, CountTokensRequest, limit=max_body)
        model = model_for(request, fleet, body.model)
        with in_the_words_of(_WORDS):
            return JSON(TokenCount(await count_tokens(request, fleet, model, body.prompt())))

    return router
