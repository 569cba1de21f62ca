"""`POST /v1/embeddings`: texts or tokens → a vector for each."""

from __future__ import annotations

from base64 import b64encode
from typing import Final, Literal

import msgspec
from pydantic import Field, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.generation.endpoint import Call, Route
from paddock.gateway.generation.fields import Inputs, ModelFields
from paddock.gateway.generation.vectors import (
    NativeEmbedding,
    PooledUsage,
    floats,
    native_embeddings,
    norm_of,
    pool,
    usage_of,
)


class EmbeddingsRequest(ModelFields):
    token_lists = frozenset({"content", "input"})
    without_effect = frozenset({"user"})

    input: Inputs | None = None
    content: Inputs | None = None
    """llama-server's name for `input`. The answer then has the shape of `/embedding`."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    embd_normalize: int | None = Field(None, ge=-1, le=64)
    """llama-server's: the norm by which a vector is divided; by default its length."""

    @model_validator(mode="after")
    def _one_input(self) -> EmbeddingsRequest:
        if (self.content is None) == (self.input is None):
            raise InvalidRequest('"input" or "content" must be provided, and not both', param="input")
        if self.content is not None and self.encoding_format == "base64":
            raise InvalidRequest("the answer to content has numbers: send input for base64", param="encoding_format")
        return self


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """The numbers, or their float32 bytes, little-endian, in base64."""
    encoding_format: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET


class EmbeddingList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PooledUsage


async def create_embeddings(call: Call[EmbeddingsRequest]) -> EmbeddingList | list[NativeEmbedding]:
    """A vector for each input, of length 1 and in the order of the inputs."""
    body, model = call.body, call.model
    options = {"dimensions": body.dimensions, "normalize": norm_of(call, body.embd_normalize)}
    if body.content is not None:
        return native_embeddings(await pool(call, "embedding", body.content, "content", **options))
    if await call.fleet.pooling(model) == "none":
        reason = "Pooling type 'none' is not OAI compatible: it gives a vector per token. Use /embeddings"
        raise InvalidRequest(reason, param="model")
    pooled = await pool(call, "embedding", body.input or [], "input", **options)
    return EmbeddingList(
        data=[_embedding(index, data, body.encoding_format) for index, data in enumerate(pooled.vectors)],
        model=body.model or model.name,
        usage=usage_of(pooled),
    )


def _embedding(index: int, data: bytes, encoding_format: str | None) -> Embedding:
    if encoding_format == "base64":
        return Embedding(index=index, embedding=b64encode(data).decode(), encoding_format="base64")
    return Embedding(index=index, embedding=floats(data))


EMBEDDINGS_ROUTE: Final = Route(
    ["/v1/embeddings"], EmbeddingsRequest, EmbeddingList | list[NativeEmbedding], create_embeddings
)
