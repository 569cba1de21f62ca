"""`POST /embedding`, llama-server's own: one vector per input, or one per token without pooling."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from pydantic import Field, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.generation.defaults import defaults_of
from paddock.gateway.generation.endpoint import Call, Route
from paddock.gateway.generation.fields import Inputs, ModelFields
from paddock.gateway.generation.vectors import floats, pool


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


async def embed(call: Call[NativeEmbeddingRequest]) -> list[NativeEmbedding]:
    """One vector per input, or one per token without pooling."""
    body = call.body
    param = "input" if body.content is None else "content"
    inputs = body.content or body.input or []
    normalize = body.embd_normalize if body.embd_normalize is not None else defaults_of(call.model).embd_normalize
    pooled = await pool(call, "embedding", inputs, param, normalize=normalize)
    vectors = [
        [numbers[start : start + pooled.width] for start in range(0, len(numbers), pooled.width)]
        for numbers in map(floats, pooled.vectors)
    ]
    return [NativeEmbedding(index=index, embedding=rows) for index, rows in enumerate(vectors)]


EMBEDDING_ROUTE: Final = Route(["/embedding", "/embeddings"], NativeEmbeddingRequest, list[NativeEmbedding], embed)
