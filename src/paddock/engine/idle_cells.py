"""How many cells idle sequences may keep in one pool: attention reads every cell, so they slow down every step."""

from __future__ import annotations

import time
from collections.abc import Callable

from paddock.engine.prefix_memory import PrefixMemory
from paddock.errors import DecodeFailed
from paddock.types import Forget, Span

# How much slower a step may become.
_SLOWER = 0.03
_SEED_TOKENS = 8
_PROBE_TOKENS, _PROBE_BYTES = 2048, 256 << 20
_REPEATS = 3
_TOKEN = 1
_RUNNING, _IDLE = 0, 1


def affordable_idle_cells(memory: PrefixMemory, decode: Callable[[Span], None], *, n_ctx: int) -> tuple[int, float]:
    """Times a step beside an empty pool and beside idle cells, which repeat a few computed tokens. Returns how many of
    them are no burden, and by how many seconds each slows down a step.
    """
    length = min(_PROBE_TOKENS, n_ctx // 2, _PROBE_BYTES // memory.bytes_per_token) // _SEED_TOKENS * _SEED_TOKENS
    if not length:
        return 0, 0.0
    position = _SEED_TOKENS

    def seconds() -> float:
        nonlocal position
        begun = time.perf_counter()
        decode(Span(_RUNNING, position, [_TOKEN]))
        position += 1
        return time.perf_counter() - begun

    try:
        decode(Span(_RUNNING, 0, [_TOKEN] * _SEED_TOKENS))
        alone = min(seconds() for _ in range(_REPEATS))
        memory.repeat(_RUNNING, _SEED_TOKENS, _IDLE, length)
        beside = min(seconds() for _ in range(_REPEATS))
    except DecodeFailed:
        return 0, 0.0
    finally:
        memory.apply([Forget(_RUNNING), Forget(_IDLE)])
    return idle_cells(alone, beside, length, n_ctx), max(beside - alone, 0.0) / length


def idle_cells(alone: float, beside: float, length: int, n_ctx: int) -> int:
    """From the time of a step alone and beside `length` idle cells. At most half the pool."""
    per_cell = (beside - alone) / length
    most = n_ctx // 2
    return most if per_cell * most <= _SLOWER * alone else int(_SLOWER * alone / per_cell)
