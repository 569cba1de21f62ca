"""`POST /embedding`, llama-server's own: one vector per input, or one per token without pooling."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.generation.endpoint import Call, Route
from paddock.gateway.generation.fields import Inputs, ModelFields
from paddock.gateway.generation.vectors import NativeEmbedding, native_embeddings, norm_of, pool


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
            raise InvalidRequest('"input" or "content" must be provided, and not both', param="content")
        return self


async def embed(call: Call[NativeEmbeddingRequest]) -> list[NativeEmbedding]:
    """One vector per input, or one per token without pooling."""
    body = call.body
    param = "input" if body.content is None else "content"
    inputs = body.content or body.input or []
    return native_embeddings(await pool(call, "embedding", inputs, param, normalize=norm_of(call, body.embd_normalize)))


EMBEDDING_ROUTE: Final = Route(["/embedding", "/embeddings"], NativeEmbeddingRequest, list[NativeEmbedding], embed)
