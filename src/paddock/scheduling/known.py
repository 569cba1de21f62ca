"""What is known of prefixes, for somebody who looks on: a part of the tree that can be drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import msgspec

N = TypeVar("N", bound=Hashable)


class KnownSpan(msgspec.Struct, frozen=True):
    """Tokens that follow those of the parent, or are the first ones."""

    id: int
    parent: int | None
    start: int
    tokens: list[int]
    """Not a copy: the tree's own, which it never changes but only replaces."""
    namespace: str
    holders: frozenset[int] = frozenset()
    """The sequences that have it in cells."""
    stored: bool = False
    """Whether host memory has it."""
    hits: int = 0


@dataclass(slots=True, frozen=True)
class Known:
    spans: list[KnownSpan]
    """Each after its parent."""
    omitted: int
    """How many more there are."""


def first_of(paths: Iterable[Iterable[N]], limit: int) -> list[N]:
    """The nodes of these paths, each of which leads from its end up: at most `limit`, those of the first paths first,
    and every one after those above it.
    """
    found: dict[N, None] = {}
    for path in paths:
        missing = list(takewhile(lambda node: node not in found, path))
        for node in reversed(missing):
            if len(found) == limit:
                return list(found)
            found[node] = None
    return list(found)


def joined(spans: Iterable[KnownSpan]) -> list[KnownSpan]:
    """The same with those as one of which the second is all that follows the first, and of which the same can be said.

    Where a prompt was cut into chunks, or for host memory, means nothing to who looks on. What was joined has the id of
    its first part.
    """
    spans = list(spans)
    followers = Counter(span.parent for span in spans)
    found: dict[int, KnownSpan] = {}
    became: dict[int | None, int] = {}
    for span in spans:
        above = became.get(span.parent)
        if above is not None and followers[span.parent] == 1 and _alike(found[above], span):
            found[above] = msgspec.structs.replace(found[above], tokens=found[above].tokens + span.tokens)
            became[span.id] = above
        else:
            found[span.id] = msgspec.structs.replace(span, parent=above)
            became[span.id] = span.id
    return list(found.values())


def _alike(one: KnownSpan, other: KnownSpan) -> bool:
    return (one.holders, one.stored, one.hits) == (other.holders, other.stored, other.hits)
