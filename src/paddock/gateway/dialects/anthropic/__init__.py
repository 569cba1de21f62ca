"""Anthropic's API: messages of content blocks."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.gateway.dialects.anthropic.answer import PING, MessageAnswer, parse
from paddock.gateway.dialects.anthropic.errors import FIELD_NAMES, anthropic_error_body
from paddock.gateway.dialects.anthropic.request import CountTokensRequest, MessagesRequest
from paddock.gateway.dialects.anthropic.schema import Event, Failure, Message, TokenCount
from paddock.gateway.dialects.dialect import Dialect, Services
from paddock.gateway.generation.endpoint import Endpoint
from paddock.gateway.generation.text_questions import count_tokens
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_MESSAGES: Final = Endpoint(
    paths=["/v1/messages"],
    name="create_message",
    description="What the model says next in a conversation, as Anthropic's API answers.",
    body=MessagesRequest,
    parse=parse,
    answer=MessageAnswer,
    trace_kind="chat",
    responses=(Message,),
    events=(Event,),
    names_events=True,
)


def _count_routes(services: Services) -> list[APIRouter]:
    router = APIRouter(tags=["anthropic"])

    @router.post(
        "/v1/messages/count_tokens",
        **describe(TokenCount, body=CountTokensRequest, error=Failure, prefix="Messages"),
    )
    async def count_message_tokens(request: Request) -> Response:
        """How many tokens the conversation has. Generates nothing."""
        body, model = await services.read(request, CountTokensRequest)
        return JSON(TokenCount(await count_tokens(request, services.fleet, model, body.prompt(), FIELD_NAMES)))

    return [router]


ANTHROPIC: Final = Dialect(
    tag="anthropic",
    endpoints=[_MESSAGES],
    routers=_count_routes,
    permissions={"key": ["POST /v1/messages/count_tokens"]},
    keep_alive=PING,
    prefixes=["/v1/messages"],
    error_body=anthropic_error_body,
    error_schema=Failure,
    schema_prefix="Messages",
    field_names=FIELD_NAMES,
)
