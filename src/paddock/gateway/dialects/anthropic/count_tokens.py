"""`POST /v1/messages/count_tokens`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.gateway.auth.caller import model_for
from paddock.gateway.dialects.anthropic.errors import FIELD_NAMES
from paddock.gateway.dialects.anthropic.request import CountTokensRequest
from paddock.gateway.dialects.anthropic.schema import Failure, TokenCount
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.generation.conversation import renamed_params
from paddock.gateway.generation.text_questions import count_tokens
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON


def count_tokens_routes(services: Services) -> APIRouter:
    fleet, max_body = services.fleet, services.settings.max_body_bytes
    router = APIRouter(tags=["anthropic"])

    @router.post(
        "/v1/messages/count_tokens",
        **describe(TokenCount, body=CountTokensRequest, error=Failure, prefix="Messages"),
    )
    async def count_message_tokens(request: Request) -> Response:
        """How many tokens the conversation has. Generates nothing."""
        body = await read_body(request, CountTokensRequest, limit=max_body)
        model = model_for(request, fleet, body.model)
        with renamed_params(FIELD_NAMES):
            return JSON(TokenCount(await count_tokens(request, fleet, model, body.prompt())))

    return router
