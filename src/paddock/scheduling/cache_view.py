"""A bounded copy of the prefix tree for display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import msgspec

N = TypeVar("N", bound=Hashable)


class CacheSpan(msgspec.Struct, frozen=True):
    """Tokens that follow those of the parent span, or the first tokens of a prompt."""

    id: int
    parent: int | None
    start: int
    tokens: list[int]
    """The tree's own list, which the tree replaces but never changes."""
    namespace: str
    holders: frozenset[int] = frozenset()
    """The sequences that have it in cells."""
    stored: bool = False
    """Whether a copy is in host memory."""
    hits: int = 0


@dataclass(slots=True, frozen=True)
class CacheView:
    spans: list[CacheSpan]
    """Parents come before their children."""
    omitted: int
    """How many more spans there are."""


def first_nodes(paths: Iterable[Iterable[N]], limit: int) -> list[N]:
    """At most `limit` nodes of these paths, earlier paths first and parents before children. A path goes from its last
    node up.
    """
    found: dict[N, None] = {}
    for path in paths:
        missing = list(takewhile(lambda node: node not in found, path))
        for node in reversed(missing):
            if len(found) == limit:
                return list(found)
            found[node] = None
    return list(found)


def merge_spans(spans: Iterable[CacheSpan]) -> list[CacheSpan]:
    """Merge each span with its only child where both have the same holders, hits and storage. The merged span has the
    id of its first part.

    The tree cuts a prompt into chunks, which mean nothing to a viewer.
    """
    spans = list(spans)
    children = Counter(span.parent for span in spans)
    merged: dict[int, CacheSpan] = {}
    merged_into: dict[int | None, int] = {}
    for span in spans:
        above = merged_into.get(span.parent)
        if above is not None and children[span.parent] == 1 and _alike(merged[above], span):
            merged[above] = msgspec.structs.replace(merged[above], tokens=merged[above].tokens + span.tokens)
            merged_into[span.id] = above
        else:
            merged[span.id] = msgspec.structs.replace(span, parent=above)
            merged_into[span.id] = span.id
    return list(merged.values())


def _alike(one: CacheSpan, other: CacheSpan) -> bool:
    return (one.holders, one.stored, one.hits) == (other.holders, other.stored, other.hits)
