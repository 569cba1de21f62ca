"""Checkpoints in host memory that have no file, and which of them are worth one."""

from __future__ import annotations

from paddock.scheduling.prefix_tree import Node
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.unwritten import StoredPath
from paddock.types import Piece


class UnwrittenStates:
    """A checkpoint is looked at once. If it gets no file then, it waits until it is used again."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether there is a disk to write to."""
        self._new: dict[int, Node] = {}
        self._postponed: dict[int, Node] = {}
        self._evicted: list[StoredPath] = []
        self._lost = 0

    def __contains__(self, checkpoint: int) -> bool:
        """Whether it has not been looked at."""
        return checkpoint in self._new

    def new(self) -> list[tuple[int, Node]]:
        """Those to look at. Prefixes come first, because what continues them may add too little for a file."""
        return sorted(self._new.items(), key=lambda item: item[1].end)

    def add(self, checkpoint: int, node: Node) -> None:
        if self.is_on:
            self._new[checkpoint] = node

    def use(self, checkpoint: int) -> None:
        """Another sequence starts there, so it may have become worth a file."""
        if (node := self._postponed.pop(checkpoint, None)) is not None:
            self._new[checkpoint] = node

    def postpone(self, checkpoint: int) -> None:
        self._postponed[checkpoint] = self._new.pop(checkpoint)

    def reconsider(self) -> None:
        """Look at all of them again."""
        self._new |= self._postponed
        self._postponed.clear()

    def forget(self, checkpoint: int) -> None:
        """It needs no file."""
        self._new.pop(checkpoint, None)
        self._postponed.pop(checkpoint, None)

    def evict(self, state: StoredPath | None) -> None:
        """A checkpoint that is wanted leaves host memory. The engine has the bytes of its state until its next
        operations. None: host memory had only a part of it.
        """
        if state is None:
            self._lost += 1
        else:
            self._evicted.append(state)

    def forget_evicted(self, tenant: str | None) -> None:
        """Write no files of what this tenant, or all, had until now."""
        self._evicted = [state for state in self._evicted if tenant not in (None, tenant_of(state.namespace))]

    def take_evicted(self) -> list[StoredPath]:
        evicted, self._evicted = self._evicted, []
        return evicted

    def take_lost(self) -> int:
        """How many were wanted, but not whole in host memory when they left it."""
        lost, self._lost = self._lost, 0
        return lost


def is_wanted(node: Node) -> bool:
    """Whether requests are likely to start there: the end of a conversation, its last prompt, or a beginning that
    several conversations have.
    """
    return len(node.children) > 1 or _checkpoints_below(node, 2) < 2


def stored_state(node: Node, checkpoint: int, last: Piece | None = None) -> StoredPath | None:
    """All that host memory has of a state: keys and values, and the checkpoint at their end. None: it lacks a part.
    `last`: what it had of the node until now.
    """
    path = list(node.path())[::-1]
    stored = [*(part.stored for part in path[:-1]), node.stored or last]
    pieces = [piece for piece in stored if piece is not None]
    if len(pieces) < len(path):
        return None
    tokens = [token for part in path for token in part.tokens]
    return StoredPath(node.namespace, tokens, [*pieces, Piece(checkpoint, 0, 0)])


def _checkpoints_below(node: Node, most: int) -> int:
    """How many checkpoints are on one path below a node, at most `most`."""
    found = 0
    level = [(child, 0) for child in node.children.values()]
    while level and found < most:
        below, above = level.pop()
        count = above + (below.checkpoint > 0)
        found = max(found, count)
        level += [(child, count) for child in below.children.values()]
    return found
