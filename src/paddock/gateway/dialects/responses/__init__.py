"""OpenAI's responses API: conversations and answers are lists of items."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.dialects.responses import schema, stored
from paddock.gateway.dialects.responses.answer import ResponseAnswer, parse
from paddock.gateway.dialects.responses.request import ResponseRequest
from paddock.gateway.generation.endpoint import Call, Endpoint, Route
from paddock.gateway.generation.text_questions import InputTokens, count_tokens

_RESPONSES: Final = Endpoint(
    paths=["/v1/responses", "/responses"],
    name="create_response",
    description="Generate the next items of a conversation: of one that is sent whole, or of one that is stored.",
    body=ResponseRequest,
    parse=parse,
    answer=ResponseAnswer,
    trace_kind="chat",
    responses=(schema.Response,),
    events=(schema.Event,),
    names_events=True,
    prepare=stored.prepare,
)


async def count_input_tokens(call: Call[ResponseRequest]) -> InputTokens:
    """Count the tokens of the input. Takes the body of a response; generates nothing."""
    body = await stored.prepare(call.request, call.body)
    return InputTokens(input_tokens=await count_tokens(replace(call, body=body)))


RESPONSES: Final = Dialect(
    tag="openai",
    endpoints=[_RESPONSES],
    routes=[
        Route(
            ["/v1/responses/input_tokens", "/responses/input_tokens"],
            ResponseRequest,
            InputTokens,
            count_input_tokens,
        )
    ],
    routers=stored.stored_routes,
    permissions={"key": stored.PERMISSIONS},
    schema_prefix="Responses",
    field_names={"messages": "input", "reasoning_effort": "reasoning.effort"},
)
