"""`POST /embedding`, llama-server's own: one vector per input, or one per token without pooling."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.generation.fields import Inputs, ModelFields
from paddock.gateway.generation.vectors import floats, pool
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON


class NativeEmbeddingRequest(ModelFields):
    token_lists = frozenset({"content", "input"})

    content: Inputs | None = None
    input: Inputs | None = None
    """Another name for `content`."""
    embd_normalize: int | None = Field(None, ge=-1, le=64)
    encoding_format: Literal["float"] | None = None

    @model_validator(mode="after")
    def _one_content(self) -> NativeEmbeddingRequest:
        if (self.content is None) == (self.input is None):
            raise InvalidRequest("send either content or input", param="content")
        return self


class NativeEmbedding(msgspec.Struct, kw_only=True):
    index: int
    embedding: list[list[float]]
    """One vector, or one per token without pooling."""


def native_embedding_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.post("/embedding", **describe(list[NativeEmbedding], body=NativeEmbeddingRequest))
    @router.post("/embeddings", **describe(list[NativeEmbedding], body=NativeEmbeddingRequest))
    async def embed(request: Request) -> Response:
        """One vector per input, or one per token without pooling."""
        body, model = await services.read(request, NativeEmbeddingRequest)
        param = "input" if body.content is None else "content"
        inputs = body.content or body.input or []
        normalize = body.embd_normalize
        pooled = await pool(request, services.fleet, model, "embedding", inputs, param, normalize=normalize)
        return JSON(
            [
                NativeEmbedding(index=index, embedding=_rows(floats(data), pooled.width))
                for index, data in enumerate(pooled.vectors)
            ]
        )

    return router


def _rows(numbers: list[float], width: int) -> list[list[float]]:
    return [numbers[start : start + width] for start in range(0, len(numbers), width)]
