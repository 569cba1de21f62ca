"""What a running and a finished sequence have in cells."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.scheduling.prefix_tree import Node
from paddock.scheduling.radix_tree import common_prefix


@dataclass(slots=True)
class Held:
    """What a running sequence has in cells."""

    namespace: str | None
    node: Node | None
    """The end of its path in the tree. None: the sequence shares nothing."""
    private: int = 0
    """Cells outside the tree: generated tokens, and duplicates of what another sequence holds. In the stream layout all
    cells of the sequence.
    """
    is_restoring: bool = False
    """The next steps restore more of its prefix."""


@dataclass(slots=True)
class Resident:
    """What a finished sequence has in cells."""

    namespace: str
    tokens: list[int]
    node: Node
    private: int
    """As in `Held`."""
    goal: int
    """How many of the tokens are worth a copy in host memory."""
    written: int
    """How many of those have been copied while there was time, or found no free room there."""
    rent: float = 0.0
    """The rent of an idle cell when it was last used."""

    @property
    def is_written_back(self) -> bool:
        return self.written >= self.goal

    def shared(self, namespace: str, tokens: list[int], limit: int) -> int:
        """How many of the first tokens, at most `limit`, it has."""
        return min(common_prefix(self.tokens, tokens), limit) if self.namespace == namespace else 0
