"""What the answers about vectors have in common, whatever the dialect."""

from __future__ import annotations

import sys
from array import array

import msgspec

from paddock.wire import Pooled


class PooledUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


def usage_of(pooled: Pooled) -> PooledUsage:
    return PooledUsage(prompt_tokens=pooled.tokens, total_tokens=pooled.tokens)


def floats(data: bytes) -> list[float]:
    """The numbers of a vector, or of several one after another."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
