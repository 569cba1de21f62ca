"""A radix tree of token sequences, with a root for each namespace. The trees of both caches derive from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Self, TypeVar
from weakref import WeakValueDictionary

from paddock.scheduling.cache_view import CacheSpan
from paddock.types import Nearest


@dataclass(slots=True, eq=False, weakref_slot=True)
class RadixNode:
    start: int
    tokens: list[int]
    parent: Self | None
    namespace: str
    id: int = 0
    children: dict[int, Self] = field(default_factory=dict)
    hits: int = 0
    """How many sequences have started with it from the cache."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> Iterator[Self]:
        """From here up, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def span(self, *, stored: bool, holders: frozenset[int] = frozenset()) -> CacheSpan:
        """A copy for display."""
        assert self.parent is not None, "the root is not shown"
        parent = None if self.parent.parent is None else self.parent.id
        return CacheSpan(self.id, parent, self.start, self.tokens, self.namespace, holders, stored, self.hits)


N = TypeVar("N", bound=RadixNode)


class RadixTree(Generic[N]):
    def __init__(self, node: type[N]) -> None:
        self._node = node
        # Clients can invent any number of namespaces, so a root lives only as long as a node below it or a holder.
        self._roots: WeakValueDictionary[str, N] = WeakValueDictionary()
        self._ids = count(1)

    def walk(self, namespace: str, tokens: Sequence[int]) -> tuple[list[N], int]:
        """The nodes along the tokens, of which the last may match only in part, and how many tokens match."""
        nodes: list[N] = []
        node = self._roots.get(namespace)
        at = 0
        while node is not None and at < len(tokens):
            node = node.children.get(tokens[at])
            if node is None:
                break
            nodes.append(node)
            shared = common_prefix(node.tokens, tokens, at)
            at += shared
            if shared < len(node.tokens):
                break
        return nodes, at

    def nearest(self, namespace: str, tokens: Sequence[int], following: int) -> Nearest:
        """The known sequence that shares most with the tokens, and at most `following` tokens of it after that. Of
        several, the newest.
        """
        nodes, length = self.walk(namespace, tokens)
        node = nodes[-1] if nodes else self._roots.get(namespace)
        if node is None:
            return Nearest()
        found = node.tokens[length - node.start :][:following]
        while len(found) < following and node.children:
            node = next(reversed(node.children.values()))
            found += node.tokens[: following - len(found)]
        return Nearest(length, found)

    def _root(self, namespace: str) -> N:
        return self._roots.setdefault(namespace, self._node(0, [], None, namespace))

    def _add(self, parent: N, tokens: list[int]) -> N:
        node = self._node(parent.end, tokens, parent, parent.namespace, next(self._ids))
        parent.children[tokens[0]] = node
        return node

    def _split(self, node: N, position: int) -> N:
        """Split a node and return the upper part. The lower part keeps its identity, because holders refer to it."""
        parent, size = node.parent, position - node.start
        assert parent is not None, "the root is never split"
        assert 0 < size < len(node.tokens), "a split leaves something on both sides"
        upper = self._add(parent, node.tokens[:size])
        upper.hits = node.hits
        upper.children[node.tokens[size]] = node
        node.start, node.tokens, node.parent = position, node.tokens[size:], upper
        return upper


def common_prefix(edge: Sequence[int], tokens: Sequence[int], at: int = 0) -> int:
    """How many tokens of `edge` equal `tokens` from `at` on. A binary search, because slices compare in C."""
    low, high = 0, min(len(edge), len(tokens) - at)
    if edge[:high] == tokens[at : at + high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if edge[low:middle] == tokens[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
