"""llama-server's own API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.dialects.llama.absent import ABSENT_ROUTES, absent_routes
from paddock.gateway.dialects.llama.completion import NativeAnswer, parse_completion, parse_infill
from paddock.gateway.dialects.llama.embedding import EMBEDDING_ROUTE
from paddock.gateway.dialects.llama.lora import lora_routes
from paddock.gateway.dialects.llama.predict import predict_routes
from paddock.gateway.dialects.llama.props import props_routes
from paddock.gateway.dialects.llama.rerank import RERANK_ROUTE
from paddock.gateway.dialects.llama.schema import InfillRequest, NativeCompletionRequest
from paddock.gateway.dialects.llama.slots import slot_routes
from paddock.gateway.dialects.llama.streams import stream_routes
from paddock.gateway.dialects.llama.text import TEXT_ROUTES
from paddock.gateway.generation.endpoint import Endpoint
from paddock.gateway.generation.native import NativeCompletion, NativeCompletionPart

_COMPLETION: Final[Endpoint[Any]] = Endpoint(
    paths=["/completion", "/completions"],
    name="complete",
    description="Complete texts, as llama-server does.",
    body=NativeCompletionRequest,
    parse=parse_completion,
    answer=NativeAnswer,
    trace_kind="text_completion",
    # One answer or several, with all fields or only with the requested ones.
    responses=(NativeCompletion, list[NativeCompletion], dict[str, Any], list[dict[str, Any]]),
    events=(NativeCompletionPart, NativeCompletion, dict[str, Any]),
)
_INFILL: Final = replace(
    _COMPLETION,
    paths=["/infill"],
    name="infill",
    description="Complete the gap between two texts, with a model that was trained for it.",
    body=InfillRequest,
    parse=parse_infill,
)
LLAMA: Final = Dialect(
    tag="native",
    endpoints=[_COMPLETION, _INFILL],
    routes=[*TEXT_ROUTES, EMBEDDING_ROUTE, RERANK_ROUTE],
    routers=lambda services: [
        each(services)
        for each in (slot_routes, props_routes, lora_routes, stream_routes, predict_routes, absent_routes)
    ],
    permissions={
        "key": [
            *("GET /props", "GET /lora-adapters", "POST /predict"),
            # They show the caller's own streams only.
            *("GET /v1/stream", "DELETE /v1/stream", "POST /v1/streams/lookup"),
            *ABSENT_ROUTES,
        ],
        # These change something for all callers, or show other callers' requests.
        "admin": ["GET /slots", "POST /slots/{id_slot}", "POST /props", "POST /lora-adapters"],
    },
)
