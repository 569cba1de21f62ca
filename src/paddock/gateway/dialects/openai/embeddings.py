"""`POST /v1/embeddings`: texts or tokens → a vector for each."""

from __future__ import annotations

from base64 import b64encode
from typing import Final, Literal

import msgspec
from pydantic import Field

from paddock.errors import InvalidRequest
from paddock.gateway.generation.endpoint import Call, Route
from paddock.gateway.generation.fields import Inputs, ModelFields
from paddock.gateway.generation.vectors import PooledUsage, floats, pool, usage_of


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


async def create_embeddings(call: Call[EmbeddingsRequest]) -> EmbeddingList:
    """A vector for each input, of length 1 and in the order of the inputs."""
    body, model = call.body, call.model
    if await call.fleet.pooling(model) == "none":
        reason = "the model has pooling 'none' and returns a vector per token: use /embeddings instead"
        raise InvalidRequest(reason, param="model")
    pooled = await pool(call, "embedding", body.input, "input", dimensions=body.dimensions)
    written = _base64 if body.encoding_format == "base64" else floats
    return EmbeddingList(
        data=[Embedding(index=index, embedding=written(data)) for index, data in enumerate(pooled.vectors)],
        model=body.model or model.name,
        usage=usage_of(pooled),
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


EMBEDDINGS_ROUTE: Final = Route(["/v1/embeddings"], EmbeddingsRequest, EmbeddingList, create_embeddings)
