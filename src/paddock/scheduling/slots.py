"""The slots that clients see: the request in each, and the tokens of its last request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from paddock.scheduling.cache import Cache
from paddock.scheduling.radix_tree import common_prefix
from paddock.scheduling.request import Request
from paddock.types import Piece, SlotPrefix


@dataclass(slots=True, frozen=True)
class Slot:
    """A slot, its current or last request, and the tokens of the last one."""

    id: int
    busy: bool
    request: Request | None
    prefix: SlotPrefix


class Slots:
    def __init__(self, count: int, cache: Cache) -> None:
        self._cache = cache
        self._current: list[Request | None] = [None] * count
        self._previous: list[Request | None] = [None] * count
        self._prefixes = [SlotPrefix()] * count

    def __iter__(self) -> Iterator[Slot]:
        rows = zip(self._current, self._previous, self._prefixes, strict=True)
        for id, (request, previous, prefix) in enumerate(rows):
            if previous is not None and previous.slot != id:
                previous = None  # it was preempted and continues in another slot
            yield Slot(id, request is not None, request or previous, prefix)

    def __len__(self) -> int:
        return len(self._current)

    def is_free(self, slot: int) -> bool:
        return self._current[slot] is None

    def free(self, wanted: int | None) -> int | None:
        """The wanted slot, or any, if it is free."""
        if wanted is not None:
            return wanted if self.is_free(wanted) else None
        return next((slot for slot, request in enumerate(self._current) if request is None), None)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, slot: int, request: Request) -> None:
        self._current[slot] = request
        request.slot = slot

    def leave(self, request: Request) -> None:
        self._current[request.slot] = None

    def remember(self, request: Request, tokens: list[int]) -> None:
        """Keep the computed tokens of a request that is about to leave."""
        prefix = SlotPrefix()
        if request.namespace is not None:
            prefix = SlotPrefix(tokens, request.namespace, request.deterministic, request.adapters)
        self._prefixes[request.slot], self._previous[request.slot] = prefix, request

    # ── saved prefixes ───────────────────────────────────────────────────────────────────────────────────────────────

    def recall(self, slot: int) -> tuple[SlotPrefix, list[Piece]]:
        """The prefix of a slot as far as host memory still has it, and its pieces."""
        prefix = self._prefixes[slot]
        pieces = self._cache.stored_pieces(namespace_of(prefix), prefix.tokens)
        known = sum(piece.length for piece in pieces)
        return msgspec.structs.replace(prefix, tokens=prefix.tokens[:known]), pieces

    def adopt(self, slot: int, prefix: SlotPrefix, state: Any) -> int:
        """Give a slot a prefix that was computed elsewhere. Returns how many tokens there was room for."""
        known = self._cache.adopt(namespace_of(prefix), prefix.tokens, state)
        self._prefixes[slot] = msgspec.structs.replace(prefix, tokens=prefix.tokens[:known])
        self._previous[slot] = None
        return known

    def erase(self, slot: int) -> int:
        """Erase a slot's prefix, except what other slots share. Returns how many tokens were dropped."""
        prefix = self._prefixes[slot]
        self._prefixes[slot], self._previous[slot] = SlotPrefix(), None
        alike = [other for other in self._prefixes if namespace_of(other) == namespace_of(prefix)]
        keep = max((common_prefix(other.tokens, prefix.tokens) for other in alike), default=0)
        return self._cache.erase(namespace_of(prefix), prefix.tokens, keep)


def namespace_of(what: Request | SlotPrefix) -> str:
    """Its namespace in the cache: prefixes are shared only under the same adapters and the same kind of batch."""
    assert what.namespace is not None, "the caller checked"
    if not what.deterministic and not what.adapters:
        return what.namespace
    return f"{what.namespace}\0{what.deterministic}\0{what.adapters}"
