"""A radix tree of the token sequences that have snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakValueDictionary

from paddock.scheduling.prefix_tree import common_prefix

_NONE = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Place:
    """A node of the tree: the position after the tokens that lead to it."""

    end: int
    tokens: list[int]
    parent: Place | None
    namespace: str
    id: int = 0
    children: dict[int, Place] = field(default_factory=dict)
    snapshot: int = _NONE
    """The snapshot at this position; none where sequences only branch."""
    hits: int = 0
    """How many sequences have started from a snapshot here or below."""

    def path(self) -> Iterator[Place]:
        """From here up, without the root."""
        place = self
        while place.parent is not None:
            yield place
            place = place.parent


class SnapshotTree:
    """Every place except a root has a snapshot or at least two children."""

    def __init__(self) -> None:
        self._roots: WeakValueDictionary[str, Place] = WeakValueDictionary()
        """As in the prefix tree, a root lives as long as a place below it."""
        self._ids = count(1)

    def longest(self, namespace: str, tokens: list[int], limit: int) -> Place | None:
        """The place of the longest snapshot that is a prefix of the tokens and no longer than `limit`."""
        path, _ = self._walk(namespace, tokens)
        return next((place for place in reversed(path) if place.snapshot and place.end <= limit), None)

    def common(self, namespace: str, tokens: list[int]) -> int:
        """How many of the first tokens are those of a snapshot."""
        return self._walk(namespace, tokens)[1]

    def unshared(self, namespace: str, tokens: list[int]) -> list[int]:
        """The snapshots along the tokens, from the end up to the first branch."""
        path, _ = self._walk(namespace, tokens)
        snapshots: list[int] = []
        below: Place | None = None
        for place in reversed(path):
            if any(child is not below for child in place.children.values()):
                break
            if place.snapshot:
                snapshots.append(place.snapshot)
            below = place
        return snapshots

    def add(self, namespace: str, tokens: list[int], snapshot: int) -> Place:
        """Add a snapshot of exactly these tokens."""
        path, common = self._walk(namespace, tokens)
        place = path[-1] if path else self._roots.setdefault(namespace, Place(0, [], None, namespace))
        if place.end < common:
            place = self._split(place.children[tokens[place.end]], common)
        if place.end < len(tokens):
            leaf = Place(len(tokens), tokens[place.end :], place, namespace, next(self._ids))
            place.children[leaf.tokens[0]] = leaf
            place = leaf
        assert not place.snapshot, "a place has one snapshot"
        place.snapshot = snapshot
        return place

    def remove(self, place: Place) -> None:
        """Remove a snapshot, its place, and a branch above it that has one child left."""
        place.snapshot = _NONE
        parent = place.parent
        self._prune(place)
        if parent is not None:
            self._prune(parent)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _walk(self, namespace: str, tokens: list[int]) -> tuple[list[Place], int]:
        """The places along the tokens, and how many tokens match, which may be more than the last place has."""
        path: list[Place] = []
        place = self._roots.get(namespace)
        at = 0
        while place is not None and at < len(tokens):
            place = place.children.get(tokens[at])
            if place is None:
                break
            shared = common_prefix(place.tokens, tokens, at)
            at += shared
            if shared < len(place.tokens):
                break
            path.append(place)
        return path, at

    def _split(self, place: Place, end: int) -> Place:
        """Insert a place above this one, at the position `end`."""
        parent = place.parent
        assert parent is not None, "the root is never split"
        upper = Place(end, place.tokens[: end - parent.end], parent, place.namespace, next(self._ids), hits=place.hits)
        parent.children[place.tokens[0]] = upper
        place.tokens, place.parent = place.tokens[end - parent.end :], upper
        upper.children[place.tokens[0]] = place
        return upper

    def _prune(self, place: Place) -> None:
        parent = place.parent
        if parent is None or place.snapshot or len(place.children) > 1:
            return
        if place.children:
            (child,) = place.children.values()
            child.tokens, child.parent = place.tokens + child.tokens, parent
            parent.children[child.tokens[0]] = child
        else:
            del parent.children[place.tokens[0]]
