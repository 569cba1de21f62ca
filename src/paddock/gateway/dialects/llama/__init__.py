"""llama-server's own API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter

from paddock.gateway.dialects.dialect import Dialect, Services
from paddock.gateway.dialects.llama.completion import ANSWERS, EVENTS, NativeAnswer, parse_completion, parse_infill
from paddock.gateway.dialects.llama.embedding import native_embedding_routes
from paddock.gateway.dialects.llama.lora import lora_routes
from paddock.gateway.dialects.llama.props import props_routes
from paddock.gateway.dialects.llama.rerank import rerank_routes
from paddock.gateway.dialects.llama.schema import InfillRequest, NativeCompletionRequest
from paddock.gateway.dialects.llama.slots import slot_routes
from paddock.gateway.dialects.llama.text import text_routes
from paddock.gateway.generation.endpoint import Endpoint

_COMPLETION: Final[Endpoint[Any]] = Endpoint(
    paths=["/completion", "/completions"],
    name="complete",
    description="How texts go on, as llama-server answers.",
    body=NativeCompletionRequest,
    parse=parse_completion,
    answer=NativeAnswer,
    trace_kind="text_completion",
    responses=ANSWERS,
    events=EVENTS,
)
_INFILL: Final = replace(
    _COMPLETION,
    paths=["/infill"],
    name="infill",
    description="What belongs between two texts, from a model that was trained to fill gaps.",
    body=InfillRequest,
    parse=parse_infill,
)


def _routers(services: Services) -> Sequence[APIRouter]:
    """The fastest answers first. Not one router: Starlette matches each level of routers again."""
    return [
        text_routes(services),
        native_embedding_routes(services),
        rerank_routes(services),
        slot_routes(services),
        props_routes(services),
        lora_routes(services),
    ]


LLAMA: Final = Dialect(
    tag="native",
    endpoints=[_COMPLETION, _INFILL],
    routers=_routers,
    permissions={
        "key": [
            *("GET /props", "GET /lora-adapters", "POST /embedding", "POST /embeddings"),
            *("POST /rerank", "POST /reranking", "POST /v1/rerank", "POST /v1/reranking"),
            *("POST /tokenize", "POST /detokenize", "POST /apply-template"),
        ],
        # These change something for all callers, or show other callers' requests.
        "admin": ["GET /slots", "POST /slots/{id_slot}", "POST /props", "POST /lora-adapters"],
    },
)
