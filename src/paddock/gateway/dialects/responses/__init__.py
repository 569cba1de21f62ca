"""OpenAI's responses API: conversations and answers are lists of items."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.gateway.dialects.dialect import Dialect, Services
from paddock.gateway.dialects.responses import schema
from paddock.gateway.dialects.responses.answer import ResponseAnswer, parse
from paddock.gateway.dialects.responses.request import ResponseRequest
from paddock.gateway.generation.endpoint import Endpoint
from paddock.gateway.generation.text_questions import count_tokens
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_FIELD_NAMES: Final = {"messages": "input", "reasoning_effort": "reasoning.effort"}
_RESPONSES: Final = Endpoint(
    paths=["/v1/responses"],
    name="create_response",
    description="What the model says next, as a list of items. Nothing is stored: send the whole conversation.",
    body=ResponseRequest,
    parse=parse,
    answer=ResponseAnswer,
    trace_kind="chat",
    responses=(schema.Response,),
    events=(schema.Event,),
    names_events=True,
)


def _count_routes(services: Services) -> list[APIRouter]:
    router = APIRouter(tags=["openai"])

    @router.post("/v1/responses/input_tokens", **describe(schema.InputTokens, body=ResponseRequest, prefix="Responses"))
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the input has. Takes the body of a response; generates nothing."""
        body, model = await services.read(request, ResponseRequest)
        count = await count_tokens(request, services.fleet, model, body.prompt(), _FIELD_NAMES)
        return JSON(schema.InputTokens(input_tokens=count))

    return [router]


RESPONSES: Final = Dialect(
    tag="openai",
    endpoints=[_RESPONSES],
    routers=_count_routes,
    permissions={"key": ["POST /v1/responses/input_tokens"]},
    schema_prefix="Responses",
    field_names=_FIELD_NAMES,
)
