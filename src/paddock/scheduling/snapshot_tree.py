"""A radix tree of the sequences whose states are kept: which of them are prefixes of which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakValueDictionary

from paddock.scheduling.prefix_tree import common_prefix

_NOTHING = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Place:
    """A point in the tree, at the end of the tokens that lead to it."""

    end: int
    tokens: list[int]
    parent: Place | None
    namespace: str
    id: int = 0
    children: dict[int, Place] = field(default_factory=dict)
    snapshot: int = _NOTHING
    """The state that is kept here; none where sequences only part."""
    hits: int = 0
    """How many sequences have begun with a state that was kept here or further on."""

    def path(self) -> Iterator[Place]:
        """From here up, without the root."""
        place = self
        while place.parent is not None:
            yield place
            place = place.parent


class SnapshotTree:
    """Every place has a snapshot or at least two ways on; a root has what it has."""

    def __init__(self) -> None:
        self._roots: WeakValueDictionary[str, Place] = WeakValueDictionary()
        """As in the prefix tree, each lives as long as something below it."""
        self._ids = count(1)

    def longest(self, namespace: str, tokens: list[int], limit: int) -> Place | None:
        """The place of the longest snapshot that is a prefix of the tokens and no longer than `limit`."""
        path, _ = self._walk(namespace, tokens)
        return next((place for place in reversed(path) if place.snapshot and place.end <= limit), None)

    def common(self, namespace: str, tokens: list[int]) -> int:
        """How many of the first tokens are those of a snapshot."""
        return self._walk(namespace, tokens)[1]

    def alone(self, namespace: str, tokens: list[int]) -> list[int]:
        """The snapshots on the way along the tokens, from its end up to where another way parts."""
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
        """A state of just these tokens is kept from now on."""
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
        """Its state is no longer kept: forget the place, and a fork above it that is none any more."""
        place.snapshot = _NOTHING
        parent = place.parent
        self._tidy(place)
        if parent is not None:
            self._tidy(parent)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _walk(self, namespace: str, tokens: list[int]) -> tuple[list[Place], int]:
        """The places along the tokens, and how far the tree goes with them, perhaps beyond the last place."""
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
        """A new place on the way to this one."""
        parent = place.parent
        assert parent is not None, "the root is never split"
        upper = Place(end, place.tokens[: end - parent.end], parent, place.namespace, next(self._ids), hits=place.hits)
        parent.children[place.tokens[0]] = upper
        place.tokens, place.parent = place.tokens[end - parent.end :], upper
        upper.children[place.tokens[0]] = place
        return upper

    def _tidy(self, place: Place) -> None:
        parent = place.parent
        if parent is None or place.snapshot or len(place.children) > 1:
            return
        if place.children:
            (child,) = place.children.values()
            child.tokens, child.parent = place.tokens + child.tokens, parent
            parent.children[child.tokens[0]] = child
        else:
            del parent.children[place.tokens[0]]
