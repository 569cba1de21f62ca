"""Positions of sequences in which images take fewer positions than tokens (M-RoPE).

The scheduler counts tokens. A sequence with such images shares nothing and is not stored, so only its end is ever cut,
behind all images.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddock.types import Forget, Fork, Operation


class PositionShifts:
    def __init__(self) -> None:
        self.by_sequence: dict[int, int] = {}
        """How many tokens more than positions a sequence has; missing: none."""

    def add(self, sequence: int, count: int) -> None:
        self.by_sequence[sequence] = self.by_sequence.get(sequence, 0) + count

    def translate(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """The same operations, in positions."""
        return [self._translate(operation) for operation in operations] if self.by_sequence else operations

    def _translate(self, operation: Operation) -> Operation:
        match operation:
            case Forget(sequence, start):
                if not start:
                    self.by_sequence.pop(sequence, None)
                return Forget(sequence, start - self.by_sequence.get(sequence, 0))
            case Fork(source, target, length, 0):
                self.by_sequence.pop(target, None)
                if shift := self.by_sequence.get(source):
                    self.by_sequence[target] = shift
                return Fork(source, target, length - self.by_sequence.get(source, 0))
        return operation
