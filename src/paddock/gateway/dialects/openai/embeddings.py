"""`POST /v1/embeddings`: texts or tokens → a vector for each."""

from __future__ import annotations

from base64 import b64encode
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from paddock.errors import InvalidRequest
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.generation.fields import Inputs, ModelFields
from paddock.gateway.generation.vectors import PooledUsage, floats, pool, usage_of
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON


class EmbeddingsRequest(ModelFields):
    token_lists = frozenset({"input"})
    without_effect = frozenset({"user"})

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)


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


def embedding_routes(services: Services) -> APIRouter:
    fleet = services.fleet
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.post("/embeddings", **describe(EmbeddingList, body=EmbeddingsRequest))
    async def create_embeddings(request: Request) -> Response:
        """A vector for each input, of length 1 and in the order of the inputs."""
        body, model = await services.read(request, EmbeddingsRequest)
        if await fleet.pooling(model) == "none":
            reason = "the model has pooling 'none' and returns a vector per token: use /embeddings instead"
            raise InvalidRequest(reason, param="model")
        pooled = await pool(request, fleet, model, "embedding", body.input, "input", dimensions=body.dimensions)
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
