"""What the routes for embeddings and reranking share."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgspec
from fastapi import Request

from paddock.fleet import Fleet, Model
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.auth.metering import meter_of, rough_tokens
from paddock.gateway.http.disconnect import until_disconnect
from paddock.types import ModelKind, PoolRequest
from paddock.wire import Pooled


class PooledUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


async def pool(
    request: Request, fleet: Fleet, model: Model, kind: ModelKind, inputs: list[Any], param: str, **options: Any
) -> Pooled:
    """Compute vectors or scores and charge the key, also if the client disconnects before the end."""
    message = PoolRequest(inputs, param, origin=caller_of(request).origin, **options)
    meter = meter_of(request)
    estimate = sum(map(rough_tokens, message.inputs)) if meter.counts_tokens or model.clustered else 0
    meter.reserve(1, estimate)
    if model.clustered:
        meter.pooling(estimate)  # a cluster reports no progress
    pooled = await until_disconnect(request, fleet.pool(model, kind, message, meter.pooling))
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
