"""A checkpoint in host memory, and where a sequence can start."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.scheduling.prefix_tree import Node


@dataclass(slots=True, frozen=True)
class Checkpoint:
    node: Node
    tenant: str
    bytes: int
    cost: int
    """The same in tokens, the unit of the quota."""


@dataclass(slots=True, frozen=True)
class Start:
    """Where a sequence can start: from a checkpoint, or from what another sequence knows now."""

    length: int = 0
    checkpoint: int = 0
    sequence: int = -1
