"""What the routes for embeddings and reranking share."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgspec

from paddock.gateway.auth.metering import meter_of, rough_tokens
from paddock.gateway.generation.defaults import defaults_of
from paddock.gateway.generation.endpoint import Call
from paddock.gateway.http.disconnect import until_disconnect
from paddock.types import ModelKind, PoolRequest
from paddock.wire.messages import Pooled


class PooledUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class NativeEmbedding(msgspec.Struct, kw_only=True):
    index: int
    embedding: list[list[float]]
    """One vector, or one per token without pooling."""


async def pool(call: Call[Any], kind: ModelKind, inputs: list[Any], param: str, **options: Any) -> Pooled:
    """Compute vectors or scores and charge the key, also if the client disconnects before the end."""
    message = PoolRequest(inputs, param, origin=call.origin, **options)
    model, meter = call.model, meter_of(call.request)
    estimate = sum(map(rough_tokens, message.inputs)) if meter.counts_tokens or model.clustered else 0
    meter.reserve(1, estimate)
    if model.clustered:
        meter.pooling(estimate)  # a cluster reports no progress
    pooled = await until_disconnect(call.request, call.fleet.pool(model, kind, message, meter.pooling))
    meter.pooled(pooled.tokens)
    return pooled


def usage_of(pooled: Pooled) -> PooledUsage:
    return PooledUsage(prompt_tokens=pooled.tokens, total_tokens=pooled.tokens)


def floats(data: bytes) -> list[float]:
    """The numbers of one vector, or of several concatenated ones."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def native_embeddings(pooled: Pooled) -> list[NativeEmbedding]:
    """llama-server's own shape: the vectors of each input."""
    vectors = [
        [numbers[start : start + pooled.width] for start in range(0, len(numbers), pooled.width)]
        for numbers in map(floats, pooled.vectors)
    ]
    return [NativeEmbedding(index=index, embedding=rows) for index, rows in enumerate(vectors)]


def norm_of(call: Call[Any], requested: int | None) -> int | None:
    """The normalization of the request, or the default of the model (`--embd-normalize`)."""
    return requested if requested is not None else defaults_of(call.model).embd_normalize
