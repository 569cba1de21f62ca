"""OpenAI's responses API: conversations and answers are lists of items."""

from __future__ import annotations

from typing import Final

from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.dialects.responses.answer import ResponseAnswer, parse
from paddock.gateway.dialects.responses.input_tokens import FIELD_NAMES, input_tokens_routes
from paddock.gateway.dialects.responses.request import ResponseRequest
from paddock.gateway.dialects.responses.schema import Event, Response
from paddock.gateway.generation.endpoint import Endpoint

_RESPONSES: Final = Endpoint(
    paths=["/v1/responses"],
    name="create_response",
    description="What the model says next, as a list of items. Nothing is stored: send the whole conversation.",
    body=ResponseRequest,
    parse=parse,
    answer=ResponseAnswer,
    trace_kind="chat",
    responses=(Response,),
    events=(Event,),
    names_events=True,
)
RESPONSES: Final = Dialect(
    tag="openai",
    endpoints=[_RESPONSES],
    routers=lambda services: [input_tokens_routes(services)],
    permissions={"key": ["POST /v1/responses/input_tokens"]},
    schema_prefix="Responses",
    field_names=FIELD_NAMES,
)
