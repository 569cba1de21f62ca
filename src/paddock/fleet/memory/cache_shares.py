"""How much host memory the prefix cache of each worker may take. Pure: the lifecycle tells the workers."""

from __future__ import annotations

from collections.abc import Mapping

_RESERVE = 8
"""One part in so many of the room under a memory limit is left free: a worker holds somewhat more than it stores,
because spans that were read together share their memory, and it is measured once a second.
"""
_STEP = 16
_SMALLEST_STEP = 4 << 20


def cache_room(cache_ram: int, limit: int | None, taken: int) -> int:
    """Bytes for the prefix caches of all workers together: what the operator allows them, and no more than the limit
    for all memory leaves beside what the workers take without their caches.
    """
    if limit is None:
        return cache_ram
    room = max(limit - taken, 0)
    return min(cache_ram, room - room // _RESERVE)


def cache_shares(room: int, most: Mapping[str, int]) -> dict[str, int]:
    """Divide `room` equally; what one of them may not take (`most`) goes to the others."""
    shares: dict[str, int] = {}
    for position, (name, limit) in enumerate(sorted(most.items(), key=lambda entry: (entry[1], entry[0]))):
        shares[name] = min(limit, room // (len(most) - position))
        room -= shares[name]
    return shares


def is_worth_telling(old: int, new: int) -> bool:
    """Whether a worker is told of its new share. What is measured moves all the time, a little."""
    return abs(new - old) > max(_SMALLEST_STEP, old // _STEP) or (new == 0) != (old == 0)
