"""A radix tree of the token sequences that have snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.scheduling.radix_tree import RadixNode, RadixTree

_NONE = 0


@dataclass(slots=True, eq=False)
class SnapshotNode(RadixNode):
    snapshot: int = _NONE
    """The snapshot of the tokens that end here. None where sequences only branch."""


class SnapshotTree(RadixTree[SnapshotNode]):
    """Every node except a root has a snapshot or at least two children."""

    def __init__(self) -> None:
        super().__init__(SnapshotNode)

    def longest(self, namespace: str, tokens: list[int], limit: int) -> SnapshotNode | None:
        """The node of the longest snapshot that is a prefix of the tokens and no longer than `limit`."""
        path = self._path(namespace, tokens)
        return next((node for node in reversed(path) if node.snapshot and node.end <= limit), None)

    def common(self, namespace: str, tokens: list[int]) -> int:
        """How many of the first tokens are those of a snapshot."""
        return self.walk(namespace, tokens)[1]

    def unshared(self, namespace: str, tokens: list[int]) -> list[int]:
        """The snapshots along the tokens, from the end up to the first branch."""
        snapshots: list[int] = []
        below: SnapshotNode | None = None
        for node in reversed(self._path(namespace, tokens)):
            if any(child is not below for child in node.children.values()):
                break
            if node.snapshot:
                snapshots.append(node.snapshot)
            below = node
        return snapshots

    def add(self, namespace: str, tokens: list[int], snapshot: int) -> SnapshotNode:
        """Add a snapshot of exactly these tokens."""
        nodes, length = self.walk(namespace, tokens)
        node = nodes[-1] if nodes else self._root(namespace)
        if node.end > length:
            node = self._split(node, length)
        if node.end < len(tokens):
            node = self._add(node, tokens[node.end :])
        assert not node.snapshot, "a node has one snapshot"
        node.snapshot = snapshot
        return node

    def remove(self, node: SnapshotNode) -> None:
        """Remove a snapshot, its node, and a branch above it that has one child left."""
        node.snapshot = _NONE
        parent = node.parent
        self._prune(node)
        if parent is not None:
            self._prune(parent)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, namespace: str, tokens: list[int]) -> list[SnapshotNode]:
        """The nodes along the tokens that match completely."""
        nodes, length = self.walk(namespace, tokens)
        return [node for node in nodes if node.end <= length]

    def _prune(self, node: SnapshotNode) -> None:
        parent = node.parent
        if parent is None or node.snapshot or len(node.children) > 1:
            return
        if node.children:
            (child,) = node.children.values()
            child.start, child.tokens, child.parent = node.start, node.tokens + child.tokens, parent
            parent.children[child.tokens[0]] = child
        else:
            del parent.children[node.tokens[0]]
