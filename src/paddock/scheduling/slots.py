"""The running places that clients see: who is in each or was there last, and the tokens it remembers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from paddock.scheduling.cache import Cache
from paddock.scheduling.prefix_tree import common_prefix
from paddock.scheduling.request import Request
from paddock.scheduling.snapshots import SnapshotCache
from paddock.types import Piece, SlotPrefix


@dataclass(slots=True, frozen=True)
class Slot:
    """A running place, the request that is in it or was there last, and the tokens it remembers."""

    id: int
    busy: bool
    request: Request | None
    prefix: SlotPrefix


class Slots:
    def __init__(self, count: int, cache: Cache | SnapshotCache) -> None:
        self._cache = cache
        self._present: list[Request | None] = [None] * count
        self._previous: list[Request | None] = [None] * count
        self._prefixes = [SlotPrefix()] * count

    def __iter__(self) -> Iterator[Slot]:
        rows = zip(self._present, self._previous, self._prefixes, strict=True)
        for id, (request, previous, prefix) in enumerate(rows):
            if previous is not None and previous.slot != id:
                previous = None  # it had to step back, and went on elsewhere
            yield Slot(id, request is not None, request or previous, prefix)

    def __len__(self) -> int:
        return len(self._present)

    def is_free(self, slot: int) -> bool:
        return self._present[slot] is None

    def free(self, wanted: int | None) -> int | None:
        """The one that is wanted, or any, if it is free."""
        if wanted is not None:
            return wanted if self.is_free(wanted) else None
        return next((slot for slot, request in enumerate(self._present) if request is None), None)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, slot: int, request: Request) -> None:
        self._present[slot] = request
        request.slot = slot

    def leave(self, request: Request) -> None:
        self._present[request.slot] = None

    def remember(self, request: Request, tokens: list[int]) -> None:
        """What was computed for who is about to leave."""
        prefix = SlotPrefix()
        if request.namespace is not None:
            prefix = SlotPrefix(tokens, request.namespace, request.deterministic, request.adapters)
        self._prefixes[request.slot], self._previous[request.slot] = prefix, request

    # ── what they remember ───────────────────────────────────────────────────────────────────────────────────────────

    def recall(self, slot: int) -> tuple[SlotPrefix, list[Piece]]:
        """What a slot remembers, as far as host memory still has it, and where."""
        prefix = self._prefixes[slot]
        pieces = self._cache.stored_pieces(shared_by(prefix), prefix.tokens)
        known = sum(piece.length for piece in pieces)
        return msgspec.structs.replace(prefix, tokens=prefix.tokens[:known]), pieces

    def adopt(self, slot: int, prefix: SlotPrefix, state: Any) -> int:
        """Have a slot remember what was computed elsewhere. Returns how many tokens of it there was room for."""
        known = self._cache.adopt(shared_by(prefix), prefix.tokens, state)
        self._prefixes[slot] = msgspec.structs.replace(prefix, tokens=prefix.tokens[:known])
        self._previous[slot] = None
        return known

    def erase(self, slot: int) -> int:
        """Have a slot forget. Returns how many tokens are known no more: others keep what they have of them."""
        prefix = self._prefixes[slot]
        self._prefixes[slot], self._previous[slot] = SlotPrefix(), None
        alike = [other for other in self._prefixes if shared_by(other) == shared_by(prefix)]
        keep = max((common_prefix(other.tokens, prefix.tokens) for other in alike), default=0)
        return self._cache.erase(shared_by(prefix), prefix.tokens, keep)


def shared_by(what: Request | SlotPrefix) -> str:
    """The part of the tree it belongs to: what was computed in the same way, under the same adapters."""
    assert what.namespace is not None, "the caller checked"
    if not what.deterministic and not what.adapters:
        return what.namespace
    return f"{what.namespace}\0{what.deterministic}\0{what.adapters}"
