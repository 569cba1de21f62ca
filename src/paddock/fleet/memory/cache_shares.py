"""Divides the host memory for prefix caches between the workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_RESERVE = 8
"""1/8 of the memory under the limit stays free: a worker holds more than it stores, and it is measured only once a
second.
"""
_STEP = 16
_SMALLEST_STEP = 4 << 20


def cache_room(cache_ram: int, limit: int | None, taken: int) -> int:
    """Bytes for the prefix caches of all workers: `cache_ram`, or less if the memory limit leaves less."""
    if limit is None:
        return cache_ram
    room = max(limit - taken, 0)
    return min(cache_ram, room - room // _RESERVE)


def cache_shares(room: int, most: Mapping[str, int]) -> dict[str, int]:
    """Divide `room` equally; what exceeds one worker's limit (`most`) goes to the others."""
    shares: dict[str, int] = {}
    for position, (name, limit) in enumerate(sorted(most.items(), key=lambda entry: (entry[1], entry[0]))):
        shares[name] = min(limit, room // (len(most) - position))
        room -= shares[name]
    return shares


def is_significant(old: int, new: int) -> bool:
    """Whether a share has changed enough to tell the worker. Measurements always vary a little."""
    return abs(new - old) > max(_SMALLEST_STEP, old // _STEP) or (new == 0) != (old == 0)
