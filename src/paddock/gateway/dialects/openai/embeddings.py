"""`POST /v1/embeddings`: texts or tokens → a vector for each."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from paddock.errors import InvalidRequest
from paddock.fleet import Fleet
from paddock.gateway.auth.caller import model_for
from paddock.gateway.generation.fields import Fields, Inputs, without_unsupported
from paddock.gateway.generation.vectors import PooledUsage, floats, pool, usage_of
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.types import PoolRequest

# Accepted, because it asks for nothing that would change the answer.
_LABELS = ("user",)


class EmbeddingsRequest(Fields):
    token_lists = frozenset({"input"})

    input: Inputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def _without_labels(cls, data: Any) -> Any:
        return without_unsupported(data, {}, _LABELS)


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """The numbers, or their float32 bytes, little-endian, in base64."""


class EmbeddingList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PooledUsage


def embedding_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.post("/embeddings", **describe(EmbeddingList, body=EmbeddingsRequest))
    async def create_embeddings(request: Request) -> Response:
        """A vector for each input, of length 1 and in the order of the inputs."""
        body = await read_body(request, EmbeddingsRequest, limit=max_body)
        model = model_for(request, fleet, body.model)
        if await fleet.pooling(model) == "none":
            reason = (
                "with the pooling 'none' every token has a vector, for which there is no room here: see /embeddings"
            )
            raise InvalidRequest(reason, param="model")
        pooled = await pool(
            request,
            fleet,
            model,
            "embedding",
            lambda id: PoolRequest(id, body.input, param="input", dimensions=body.dimensions),
        )
        written = _base64 if body.encoding_format == "base64" else floats
        return JSON(
            EmbeddingList(
                data=[Embedding(index=index, embedding=written(data)) for index, data in enumerate(pooled.vectors)],
                model=body.model or model.name,
                usage=usage_of(pooled),
            )
        )

    return router


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
