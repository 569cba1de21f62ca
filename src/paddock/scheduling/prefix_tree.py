"""A radix tree of token spans: which prefixes are cached, and in which tier each part is.

A node is *hot* while a sequence holds it in the context's cells, and *stored* while a copy is in host memory. It is
removed when it is neither. If a node is in a tier, its parent is too, so every path can be used from the root down.

All holders of a node share the same cells. Two sequences can also compute the same tokens at the same time: the second
then has a duplicate of the node, and becomes its holder when the last holder leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from paddock.scheduling.cache_view import CacheView, first_nodes
from paddock.scheduling.lru import LruOrder
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.radix_tree import RadixNode, RadixTree, common_prefix
from paddock.types import Piece


@dataclass(slots=True, eq=False)
class Node(RadixNode):
    holders: set[int] = field(default_factory=set)
    duplicates: set[int] = field(default_factory=set)
    """Sequences that have the same tokens in cells of their own."""
    stored: Piece | None = None
    checkpoint: int = 0
    """The checkpoint of windowed and recurrent layers at the end of this node. 0: none."""


@dataclass(slots=True, frozen=True)
class Orphan:
    """A checkpoint whose node was removed."""

    checkpoint: int
    stored: Piece | None
    """What host memory had of the node until then."""


@dataclass(slots=True, frozen=True)
class Match:
    """The longest cached prefix of some tokens: its nodes, of which the last may match only in part."""

    nodes: list[Node]
    length: int

    def hot(self) -> int:
        """How many of its tokens are in cells."""
        length = 0
        for node in self.nodes:
            if not node.holders:
                break
            length = min(node.end, self.length)
        return length

    def sources(self, length: int) -> list[tuple[int, int, int]]:
        """The sequences that hold the first `length` tokens, with the start and end of each part, in order. The last
        one has all of them, some perhaps as duplicates.
        """
        parts: list[tuple[int, int, int]] = []
        for node in reversed([node for node in self.nodes if node.start < length]):
            end = min(node.end, length)
            if parts and parts[-1][0] in node.holders:
                holder, _, end = parts.pop()
            else:
                holder = min(node.holders)
            parts.append((holder, node.start, end))
        return parts[::-1]

    def stored(self) -> int:
        """How many of its tokens are in host memory."""
        length = 0
        for node in self.nodes:
            if node.stored is None:
                break
            length = min(node.end, self.length)
        return length

    def pieces(self, start: int, end: int) -> list[Piece]:
        """The pieces of host memory with the tokens `start..end`, in order."""
        found: list[Piece] = []
        for node in self.nodes:
            low, high = max(start, node.start), min(end, node.end)
            if low < high:
                assert node.stored is not None, "the range is within stored()"
                found.append(Piece(node.stored.span, node.stored.offset + low - node.start, high - low))
        return found


class PrefixTree(RadixTree[Node]):
    def __init__(self) -> None:
        super().__init__(Node)
        # A path is touched from its end up, so a parent always comes after its children.
        self._lru: LruOrder[Node] = LruOrder()
        self._span_nodes: Counter[int] = Counter()
        self._pinned: Counter[int] = Counter()
        self.spared: Container[int] = ()
        """Spans that are not evicted for now, because that would free no memory."""
        self.size = 0
        """How many nodes there are, without roots."""
        self.hot_tokens = 0
        self.orphans: list[Orphan] = []

    def match(self, namespace: str, tokens: Sequence[int]) -> Match:
        return Match(*self.walk(namespace, tokens))

    def touch(self, nodes: Sequence[Node]) -> None:
        for node in reversed(nodes):
            if node.stored is not None:
                self._lru.touch(node)

    # ── the hot tier ─────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, sequence: int, namespace: str, match: Match, length: int) -> Node:
        """Make a sequence hold the first `length` matched tokens. Returns the last node it holds."""
        last = self._root(namespace)
        for node in match.nodes:
            if node.start >= length:
                break
            last = self._split(node, length) if node.end > length else node
            self._add_holder(last, sequence)
        return last

    def extend(self, sequence: int, node: Node, tokens: list[int]) -> tuple[Node, int]:
        """Add computed tokens below a node that the sequence has. Returns its new last node, and how many of these
        tokens are duplicates because another sequence holds them already.
        """
        at = duplicated = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = self._add(node, tokens[at:])
            else:
                shared = common_prefix(child.tokens, tokens, at)
                if shared < len(child.tokens):
                    child = self._split(child, child.start + shared)
            if child.holders:
                child.duplicates.add(sequence)
                duplicated += len(child.tokens)
            else:
                self._add_holder(child, sequence)
            at += len(child.tokens)
            node = child
        return node, duplicated

    def release(self, sequence: int, node: Node) -> list[tuple[int, int]]:
        """Remove a sequence from all nodes, from `node` up. Returns the sequences whose duplicates became the shared
        cells, and the number of tokens.
        """
        return self._remove_from(list(node.path()), sequence)

    def trim(self, sequence: int, node: Node, namespace: str, tokens: list[int]) -> tuple[Node, list[tuple[int, int]]]:
        """Make a sequence that held everything down to `node` hold just these tokens. Returns its new last node, and
        the same as `release`.
        """
        path = self.grow(namespace, self.match(namespace, tokens), tokens)
        for held in path:
            if sequence not in held.duplicates:
                self._add_holder(held, sequence)
        kept = set(path)
        return path[-1], self._remove_from([held for held in node.path() if held not in kept], sequence)

    def rename(self, node: Node, old: int, new: int) -> None:
        for held in node.path():
            for sequences in (held.holders, held.duplicates):
                if old in sequences:
                    sequences.remove(old)
                    sequences.add(new)

    # ── the stored tier ──────────────────────────────────────────────────────────────────────────────────────────────

    def grow(self, namespace: str, match: Match, tokens: list[int]) -> list[Node]:
        """Make a path for all of `tokens`, of which `match` exists. The new nodes are in no tier yet."""
        nodes = list(match.nodes)
        if nodes and nodes[-1].end > match.length:
            nodes[-1] = self._split(nodes[-1], match.length)
        if match.length < len(tokens):
            nodes.append(self._add(nodes[-1] if nodes else self._root(namespace), tokens[match.length :]))
        return nodes

    def store(self, node: Node, span: int) -> None:
        """Mark a node as stored in host memory as this span."""
        node.stored = Piece(span, 0, len(node.tokens))
        self._span_nodes[span] = 1
        self._lru.touch(node)

    def cut(self, node: Node, size: int) -> list[Node]:
        """Split a node into a chain of nodes of at most `size` tokens."""
        chain: list[Node] = []
        while len(node.tokens) > size:
            chain.append(self._split(node, node.start + size))
        return [*chain, node]

    def evict(
        self, tenant: str, protected: Collection[Node], running: Collection[int], residents: Iterable[Node]
    ) -> int | None:
        """Remove the stored copy of this tenant's least recently used leaf that no `running` sequence holds: rather one
        that is in cells too, because then nothing is lost. `residents` are the ends of finished sequences, the least
        recently used first.

        Returns the span that is now unused, or None if another node still uses it. Raises `LookupError` when everything
        is in use.
        """

        def is_free(node: Node) -> bool:
            is_used = node in protected or _has_stored_child(node) or self._is_spared(node)
            return not is_used and node.holders.isdisjoint(running)

        for end in residents:
            if tenant_of(end.namespace) != tenant:
                continue
            last = next((node for node in end.path() if node.stored is not None), None)
            if last is not None and is_free(last):
                return self._unstore(last)
        for _ in range(self._lru.count(tenant)):
            node = self._lru.oldest(tenant)
            if is_free(node):
                return self._unstore(node)
            self._lru.skip(node)
        raise LookupError

    def discard(self, node: Node) -> None:
        """Remove a node that `grow` made and that is in no tier."""
        self._prune(node)

    def pin(self, spans: Iterable[int]) -> None:
        """Keep these spans in host memory until they are unpinned as often."""
        self._pinned.update(spans)

    def unpin(self, spans: Iterable[int]) -> None:
        self._pinned -= Counter(spans)

    def _is_pinned(self, node: Node) -> bool:
        return node.stored is not None and self._pinned[node.stored.span] > 0

    def _is_spared(self, node: Node) -> bool:
        return self._is_pinned(node) or (node.stored is not None and node.stored.span in self.spared)

    def forget(self, nodes: Sequence[Node]) -> list[int]:
        """Remove the stored copies of a path, from its end up to a node that is in use. Returns the unused spans."""
        spans: list[int] = []
        for node in reversed(nodes):
            if node.children or node.holders or node.stored is None or self._is_pinned(node):
                break
            if (span := self._unstore(node)) is not None:
                spans.append(span)
        return spans

    @property
    def spans(self) -> Collection[int]:
        return self._span_nodes.keys()

    def nodes(self) -> Iterator[Node]:
        pending = [child for root in self._roots.values() for child in root.children.values()]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node

    def tokens_of_tenants(self) -> tuple[Counter[str], Counter[str]]:
        """The tokens of each tenant in cells, and in host memory."""
        hot: Counter[str] = Counter()
        stored: Counter[str] = Counter()
        for node in self.nodes():
            tenant = tenant_of(node.namespace)
            hot[tenant] += len(node.tokens) if node.holders else 0
            stored[tenant] += len(node.tokens) if node.stored is not None else 0
        return hot, stored

    def view(self, ends: Iterable[Node], limit: int) -> CacheView:
        """At most `limit` nodes: the paths to these nodes, then the most recently used. The time depends on `limit`
        and not on the size of the tree.
        """
        nodes = first_nodes((node.path() for node in chain(ends, reversed(self._lru))), limit)
        spans = [
            node.span(stored=node.stored is not None, holders=frozenset(node.holders | node.duplicates))
            for node in nodes
        ]
        return CacheView(spans, omitted=self.size - len(nodes))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, parent: Node, tokens: list[int]) -> Node:
        self.size += 1
        return super()._add(parent, tokens)

    def _add_holder(self, node: Node, sequence: int) -> None:
        if not node.holders:
            self.hot_tokens += len(node.tokens)
        node.holders.add(sequence)

    def _remove_from(self, nodes: list[Node], sequence: int) -> list[tuple[int, int]]:
        new_holders = [(self._remove_holder(node, sequence), len(node.tokens)) for node in nodes]
        return [(new_holder, count) for new_holder, count in new_holders if new_holder is not None]

    def _remove_holder(self, node: Node, sequence: int) -> int | None:
        """Returns the sequence that becomes the holder instead, if there is one."""
        node.duplicates.discard(sequence)
        if sequence not in node.holders:
            return None
        node.holders.remove(sequence)
        if node.holders:
            return None
        if node.duplicates:
            new_holder = min(node.duplicates)
            node.duplicates.remove(new_holder)
            node.holders.add(new_holder)
            return new_holder
        self.hot_tokens -= len(node.tokens)
        self._prune(node)
        return None

    def _split(self, node: Node, position: int) -> Node:
        upper = super()._split(node, position)
        upper.holders.update(node.holders)
        upper.duplicates.update(node.duplicates)
        if node.stored is not None:
            span, offset, size = node.stored.span, node.stored.offset, len(upper.tokens)
            upper.stored = Piece(span, offset, size)
            node.stored = Piece(span, offset + size, node.stored.length - size)
            self._span_nodes[span] += 1
            self._lru.touch(upper)
        return upper

    def _unstore(self, node: Node) -> int | None:
        assert node.stored is not None, "only stored nodes are in the LRU order"
        stored, span = node.stored, node.stored.span
        node.stored = None
        self._lru.remove(node)
        self._prune(node, stored)
        self._span_nodes[span] -= 1
        if self._span_nodes[span]:
            return None
        del self._span_nodes[span]
        return span

    def _prune(self, node: Node, stored: Piece | None = None) -> None:
        """Remove a node that is in no tier. `stored`: what host memory had of it until now."""
        if node.parent is not None and not node.children and not node.holders and node.stored is None:
            del node.parent.children[node.tokens[0]]
            self.size -= 1
            if node.checkpoint:
                self.orphans.append(Orphan(node.checkpoint, stored))
                node.checkpoint = 0


def _has_stored_child(node: Node) -> bool:
    return any(child.stored is not None for child in node.children.values())
