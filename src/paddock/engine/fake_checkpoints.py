"""What the windowed or recurrent layers of the fake engine know: the tokens of each sequence, as they saw them last.

A real engine does not notice if a sequence continues with the wrong state. This one fails.
"""

from __future__ import annotations

from collections.abc import Sequence


class FakeStates:
    def __init__(self) -> None:
        self._known: dict[int, list[int]] = {}
        self._checkpoints: dict[int, list[int]] = {}

    def __contains__(self, checkpoint: int) -> bool:
        return checkpoint in self._checkpoints

    @property
    def count(self) -> int:
        return len(self._checkpoints)

    def cut(self, sequence: int, start: int) -> None:
        """The sequence holds `start` tokens now. A state of more tokens is lost."""
        if len(self._known.get(sequence, ())) > start:
            del self._known[sequence]

    def lose(self, sequence: int) -> None:
        """The sequence has got cells from elsewhere."""
        self._known.pop(sequence, None)

    def advance(self, sequence: int, before: Sequence[int], after: list[int]) -> None:
        known = self._known.get(sequence, [])
        if known != before:
            raise AssertionError(f"sequence {sequence} holds {len(before)} tokens, but its state is of {len(known)}")
        self._known[sequence] = after

    def save(self, sequence: int, held: list[int], length: int, checkpoint: int) -> None:
        self._check(sequence, held, length)
        self._checkpoints[checkpoint] = held

    def load(self, sequence: int, held: list[int], length: int, checkpoint: int) -> None:
        self._known[sequence] = self._checkpoints[checkpoint]
        self._check(sequence, held, length)

    def copy(self, source: int, target: int, held: list[int], length: int) -> None:
        self._known[target] = self._known[source]
        self._check(target, held, length)

    def check(self, checkpoint: int, tokens: list[int]) -> None:
        """Before the state is written to a file."""
        if self._checkpoints[checkpoint] != tokens:
            raise AssertionError(f"checkpoint {checkpoint} is not that of its {len(tokens)} tokens")

    def adopt(self, tokens: list[int], checkpoint: int) -> None:
        self._checkpoints[checkpoint] = tokens

    def drop(self, checkpoint: int) -> None:
        del self._checkpoints[checkpoint]

    def _check(self, sequence: int, held: list[int], length: int) -> None:
        if not len(held) == length or self._known.get(sequence) != held:
            raise AssertionError(f"the state of sequence {sequence} is not that of its {length} tokens")
