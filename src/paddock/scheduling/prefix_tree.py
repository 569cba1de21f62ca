"""A radix tree of token spans: the truth about which prefixes are known, and in which tier each part of them lies.

A node is *hot* while a running sequence holds it in the context's cells, and *stored* while a copy lies in host memory.
It leaves the tree when it is neither. What is known of a node is known of its parent, so any path can be used from the
root down as far as it goes.

All holders of a node have the same cells for it. Two sequences may also compute the same tokens side by side: the
second then has a double of the node, and becomes its holder when the last of them has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from weakref import WeakValueDictionary

from paddock.scheduling.known import Known, KnownSpan, first_of
from paddock.scheduling.recency import Recency
from paddock.types import Piece


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    start: int
    tokens: list[int]
    parent: Node | None
    namespace: str
    id: int = 0
    children: dict[int, Node] = field(default_factory=dict)
    holders: set[int] = field(default_factory=set)
    doubles: set[int] = field(default_factory=set)
    """Sequences that have it in cells of their own."""
    stored: Piece | None = None
    hits: int = 0
    """How many sequences have begun with it without computing it."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> Iterator[Node]:
        """From here up, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(slots=True, frozen=True)
class Match:
    """The longest known prefix of some tokens: the nodes it runs through, the last one perhaps only in part."""

    nodes: list[Node]
    length: int

    def hot(self) -> int:
        """How far cells hold it."""
        length = 0
        for node in self.nodes:
            if not node.holders:
                break
            length = min(node.end, self.length)
        return length

    def sources(self, length: int) -> list[tuple[int, int, int]]:
        """Who holds the first `length` tokens, which cells do: sequences and the parts to be had of each, in order.
        The last one has all of them, if need be as doubles.
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
        """How far host memory holds it."""
        length = 0
        for node in self.nodes:
            if node.stored is None:
                break
            length = min(node.end, self.length)
        return length

    def pieces(self, start: int, end: int) -> list[Piece]:
        """Where host memory has the tokens `start..end`, in order."""
        found: list[Piece] = []
        for node in self.nodes:
            low, high = max(start, node.start), min(end, node.end)
            if low < high:
                assert node.stored is not None, "asked for within stored()"
                found.append(Piece(node.stored.span, node.stored.offset + low - node.start, high - low))
        return found


class PrefixTree:
    def __init__(self) -> None:
        # Clients can think of any number of namespaces: a root lives as long as something below it, or a holder, does.
        self._roots: WeakValueDictionary[str, Node] = WeakValueDictionary()
        # Oldest first. A path is touched from its end up, so a parent always comes after its children.
        self._recency: Recency[Node] = Recency()
        self._span_nodes: Counter[int] = Counter()
        self._ids = count(1)
        self.size = 0
        """How many nodes there are, without roots."""
        self.hot_tokens = 0

    def match(self, namespace: str, tokens: Sequence[int]) -> Match:
        nodes: list[Node] = []
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
        return Match(nodes, at)

    def touch(self, nodes: Sequence[Node]) -> None:
        for node in reversed(nodes):
            if node.stored is not None:
                self._recency.use(node)

    # ── the hot tier ─────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, sequence: int, namespace: str, match: Match, length: int) -> Node:
        """This sequence now has the first `length` matched tokens in cells. Returns the node where its hold ends."""
        last = self._root(namespace)
        for node in match.nodes:
            if node.start >= length:
                break
            last = self._split(node, length) if node.end > length else node
            self._add_holder(last, sequence)
        return last

    def extend(self, sequence: int, node: Node, tokens: list[int]) -> tuple[Node, int]:
        """The sequence computed `tokens` below a node that it has. Returns its new end, and how many of these tokens
        are doubles, because another sequence holds them already.
        """
        at = doubled = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = self._add(node, tokens[at:])
            else:
                shared = common_prefix(child.tokens, tokens, at)
                if shared < len(child.tokens):
                    child = self._split(child, child.start + shared)
            if child.holders:
                child.doubles.add(sequence)
                doubled += len(child.tokens)
            else:
                self._add_holder(child, sequence)
            at += len(child.tokens)
            node = child
        return node, doubled

    def release(self, sequence: int, node: Node) -> list[tuple[int, int]]:
        """The sequence lets go of its cells, from `node` up. Returns who now holds what it had doubles of, and how many
        tokens that are.
        """
        heirs = [(self._let_go(held, sequence), len(held.tokens)) for held in list(node.path())]
        return [(heir, count) for heir, count in heirs if heir is not None]

    def regrip(self, sequence: int, node: Node, namespace: str, tokens: list[int]) -> Node:
        """A sequence that held everything down to `node` now holds just these tokens. Returns where they end."""
        path = self.grow(namespace, self.match(namespace, tokens), tokens)
        for held in path:
            if sequence not in held.doubles:
                self._add_holder(held, sequence)
        kept = set(path)
        for held in [held for held in node.path() if held not in kept]:
            self._let_go(held, sequence)
        return path[-1]

    def rename(self, node: Node, old: int, new: int) -> None:
        for held in node.path():
            for having in (held.holders, held.doubles):
                if old in having:
                    having.remove(old)
                    having.add(new)

    # ── the stored tier ──────────────────────────────────────────────────────────────────────────────────────────────

    def grow(self, namespace: str, match: Match, tokens: list[int]) -> list[Node]:
        """Make a path for all of `tokens`, of which `match` is known. The new nodes are in no tier yet."""
        nodes = list(match.nodes)
        if nodes and nodes[-1].end > match.length:
            nodes[-1] = self._split(nodes[-1], match.length)
        if match.length < len(tokens):
            nodes.append(self._add(nodes[-1] if nodes else self._root(namespace), tokens[match.length :]))
        return nodes

    def store(self, node: Node, span: int) -> None:
        """Host memory now has the whole node, as this span."""
        node.stored = Piece(span, 0, len(node.tokens))
        self._span_nodes[span] = 1
        self._recency.use(node)

    def cut(self, node: Node, size: int) -> list[Node]:
        """The node as a chain of nodes of at most `size` tokens."""
        chain: list[Node] = []
        while len(node.tokens) > size:
            chain.append(self._split(node, node.start + size))
        return [*chain, node]

    def evict(self, tenant: str, protected: Collection[Node]) -> int | None:
        """Forget this tenant's stored copy that was least recently used, at the end of a path that nobody runs on.

        Returns the span that is then unused, or None where it still serves another node. Raises `LookupError` when
        everything is in use.
        """
        for _ in range(self._recency.count(tenant)):
            node = self._recency.oldest(tenant)
            if node.children or node.holders or node in protected:
                self._recency.put_off(node)
                continue
            return self._unstore(node)
        raise LookupError

    def discard(self, node: Node) -> None:
        """Take back a node that `grow` made and no tier took."""
        self._prune(node)

    def forget(self, nodes: Sequence[Node]) -> list[int]:
        """Drop the stored copies of a path, from its end up, as far as nobody else needs them."""
        spans: list[int] = []
        for node in reversed(nodes):
            if node.children or node.holders or node.stored is None:
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

    def known(self, ends: Iterable[Node], limit: int) -> Known:
        """What leads to these nodes, then what was used last; the rest is only counted. As long as it takes for
        `limit` of them, however many there are.
        """
        nodes = first_of((node.path() for node in chain(ends, reversed(self._recency))), limit)
        return Known([_shown(node) for node in nodes], omitted=self.size - len(nodes))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _root(self, namespace: str) -> Node:
        return self._roots.setdefault(namespace, Node(0, [], None, namespace))

    def _add(self, parent: Node, tokens: list[int]) -> Node:
        node = Node(parent.end, tokens, parent, parent.namespace, next(self._ids))
        parent.children[tokens[0]] = node
        self.size += 1
        return node

    def _add_holder(self, node: Node, sequence: int) -> None:
        if not node.holders:
            self.hot_tokens += len(node.tokens)
        node.holders.add(sequence)

    def _let_go(self, node: Node, sequence: int) -> int | None:
        """Returns who becomes its holder, if somebody does."""
        node.doubles.discard(sequence)
        if sequence not in node.holders:
            return None
        node.holders.remove(sequence)
        if node.holders:
            return None
        if node.doubles:
            heir = min(node.doubles)
            node.doubles.remove(heir)
            node.holders.add(heir)
            return heir
        self.hot_tokens -= len(node.tokens)
        self._prune(node)
        return None

    def _split(self, node: Node, position: int) -> Node:
        """Cut a node in two and return the upper part. The lower keeps its identity, for those who hold all of it."""
        parent, size = node.parent, position - node.start
        assert parent is not None, "the root is never split"
        assert 0 < size < len(node.tokens), "a split leaves something on both sides"
        upper = Node(node.start, node.tokens[:size], parent, node.namespace, next(self._ids), hits=node.hits)
        upper.children[node.tokens[size]] = node
        upper.holders.update(node.holders)
        upper.doubles.update(node.doubles)
        self.size += 1
        parent.children[node.tokens[0]] = upper
        node.start, node.tokens, node.parent = position, node.tokens[size:], upper
        if node.stored is not None:
            span, offset, length = node.stored.span, node.stored.offset, node.stored.length
            upper.stored = Piece(span, offset, size)
            node.stored = Piece(span, offset + size, length - size)
            self._span_nodes[span] += 1
            self._recency.use(upper)
        return upper

    def _unstore(self, node: Node) -> int | None:
        assert node.stored is not None, "only stored nodes are in the order of recency"
        span = node.stored.span
        node.stored = None
        self._recency.remove(node)
        self._prune(node)
        self._span_nodes[span] -= 1
        if self._span_nodes[span]:
            return None
        del self._span_nodes[span]
        return span

    def _prune(self, node: Node) -> None:
        if node.parent is not None and not node.children and not node.holders and node.stored is None:
            del node.parent.children[node.tokens[0]]
            self.size -= 1


def _shown(node: Node) -> KnownSpan:
    assert node.parent is not None, "roots are not shown"
    return KnownSpan(
        node.id,
        None if node.parent.parent is None else node.parent.id,
        node.start,
        node.tokens,
        node.namespace,
        holders=frozenset(node.holders | node.doubles),
        stored=node.stored is not None,
        hits=node.hits,
    )


def common_prefix(edge: Sequence[int], tokens: Sequence[int], at: int = 0) -> int:
    """How many tokens of `edge` agree with `tokens` from `at` on: slices compare in C, so the search halves."""
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
