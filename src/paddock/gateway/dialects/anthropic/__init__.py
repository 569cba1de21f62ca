"""Anthropic's API: messages of content blocks."""

from __future__ import annotations

from typing import Final

from paddock.gateway.dialects.anthropic.answer import PING, MessageAnswer, parse
from paddock.gateway.dialects.anthropic.count_tokens import count_tokens_routes
from paddock.gateway.dialects.anthropic.errors import FIELD_NAMES, anthropic_error_body
from paddock.gateway.dialects.anthropic.request import MessagesRequest
from paddock.gateway.dialects.anthropic.schema import Event, Failure, Message
from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.generation.endpoint import Endpoint

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
ANTHROPIC: Final = Dialect(
    tag="anthropic",
    endpoints=[_MESSAGES],
    routers=lambda services: [count_tokens_routes(services)],
    permissions={"key": ["POST /v1/messages/count_tokens"]},
    keep_alive=PING,
    prefixes=["/v1/messages"],
    error_body=anthropic_error_body,
    error_schema=Failure,
    schema_prefix="Messages",
    field_names=FIELD_NAMES,
)
