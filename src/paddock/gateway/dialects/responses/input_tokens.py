"""`POST /v1/responses/input_tokens`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.gateway.auth.caller import model_for
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.responses.request import ResponseRequest
from paddock.gateway.dialects.responses.schema import InputTokens
from paddock.gateway.generation.conversation import renamed_params
from paddock.gateway.generation.text_questions import count_tokens
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

FIELD_NAMES: Final = {"messages": "input", "reasoning_effort": "reasoning.effort"}


def input_tokens_routes(services: Services) -> APIRouter:
    fleet, max_body = services.fleet, services.settings.max_body_bytes
    router = APIRouter(tags=["openai"])

    @router.post("/v1/responses/input_tokens", **describe(InputTokens, body=ResponseRequest, prefix="Responses"))
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the input has. Takes the body of a response; generates nothing."""
        body = await read_body(request, ResponseRequest, limit=max_body)
        model = model_for(request, fleet, body.model)
        with renamed_params(FIELD_NAMES):
            return JSON(InputTokens(input_tokens=await count_tokens(request, fleet, model, body.prompt())))

    return router
