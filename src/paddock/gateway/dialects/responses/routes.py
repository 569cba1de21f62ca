from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi import Response as HTTPResponse

from paddock.fleet import Fleet
from paddock.gateway.auth.caller import model_for
from paddock.gateway.dialects.responses.answer import ResponseAnswer, to_generate
from paddock.gateway.dialects.responses.request import ResponseRequest
from paddock.gateway.dialects.responses.schema import Event, InputTokens, Response
from paddock.gateway.generation.conversation import in_the_words_of
from paddock.gateway.generation.job_ids import read_generation
from paddock.gateway.generation.respond import respond
from paddock.gateway.generation.text_questions import count_tokens
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_WORDS = {"messages": "input", "reasoning_effort": "reasoning.effort"}


def response_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", tags=["openai"])

    @router.post("", **describe(Response, body=ResponseRequest, events=(Event,), named=True, prefix="Responses"))
    async def create_response(request: Request) -> HTTPResponse:
        """What the model says next, as a row of items. Nothing is kept: send the whole conversation each time."""
        body = await read_generation(request, ResponseRequest, limit=max_body)
        requests = [partial(to_generate, body)]
        return await respond(
            request, fleet, body, requests, lambda model, started: ResponseAnswer(body, model, started[0]), words=_WORDS
        )

    @router.post("/input_tokens", **describe(InputTokens, body=ResponseRequest, prefix="Responses"))
    async def count_input_tokens(request: Request) -> HTTPResponse:
        """How many tokens a request's input has. Takes the body of one; generates nothing."""
        body = await read_body(request, ResponseRequest, limit=max_body)
        model = model_for(request, fleet, body.model)
        with in_the_words_of(_WORDS):
            return JSON(InputTokens(input_tokens=await count_tokens(request, fleet, model, body.prompt())))

    return router
