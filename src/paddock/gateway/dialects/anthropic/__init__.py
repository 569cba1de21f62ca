"""Anthropic's API: messages of content blocks."""

from __future__ import annotations

from typing import Final

from paddock.gateway.dialects.anthropic.answer import PING, MessageAnswer, parse
from paddock.gateway.dialects.anthropic.batches import message_batch_routes
from paddock.gateway.dialects.anthropic.request import CountTokensRequest, MessagesRequest
from paddock.gateway.dialects.anthropic.schema import Event, Failure, Message, TokenCount, anthropic_error_body
from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.generation.endpoint import Call, Endpoint, Route
from paddock.gateway.generation.text_questions import count_tokens

_MESSAGES: Final = Endpoint(
    paths=["/v1/messages", "/messages"],
    name="create_message",
    description="Generate the next message of a conversation, as Anthropic's API does.",
    body=MessagesRequest,
    parse=parse,
    answer=MessageAnswer,
    trace_kind="chat",
    responses=(Message,),
    events=(Event,),
    names_events=True,
)


async def count_message_tokens(call: Call[CountTokensRequest]) -> TokenCount:
    """Count the tokens of a conversation. Generates nothing."""
    return TokenCount(await count_tokens(call))


ANTHROPIC: Final = Dialect(
    tag="anthropic",
    endpoints=[_MESSAGES],
    routes=[
        Route(
            ["/v1/messages/count_tokens", "/messages/count_tokens"],
            CountTokensRequest,
            TokenCount,
            count_message_tokens,
        )
    ],
    routers=lambda services: [message_batch_routes(services)],
    permissions={
        "key": [
            *("POST /v1/messages/batches", "GET /v1/messages/batches"),
            *(f"{method} /v1/messages/batches/{{message_batch_id}}" for method in ("GET", "DELETE")),
            "POST /v1/messages/batches/{message_batch_id}/cancel",
            "GET /v1/messages/batches/{message_batch_id}/results",
        ]
    },
    keep_alive=PING,
    prefixes=["/v1/messages", "/messages"],
    error_body=anthropic_error_body,
    error_schema=Failure,
    schema_prefix="Messages",
    field_names={"reasoning_effort": "thinking"},
)
