"""Spans of host memory that another thread reads while it writes them to files. They are held until it is done, also if
the cache drops them meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from paddock.types import Piece


class LentSpans:
    """Sizes are in tokens."""

    def __init__(self) -> None:
        self._lent: Counter[int] = Counter()
        """Span → how many writes read it."""
        self._evicted: dict[int, int] = {}
        """Spans that the next operations of the engine drop, with their sizes. They can be lent until then."""
        self._dropped: dict[int, int] = {}
        """Lent spans that the cache has dropped, with their sizes."""

    def __contains__(self, span: object) -> bool:
        return span in self._lent

    @property
    def dropped(self) -> int:
        """What is held only because it is lent."""
        return sum(self._dropped.values())

    def drop(self, span: int, size: int) -> None:
        """The cache drops a span."""
        (self._dropped if span in self._lent else self._evicted)[span] = size

    def cost(self, pieces: Sequence[Piece]) -> int:
        """By how much `dropped` grows if these pieces are lent."""
        return sum(self._evicted[span] for span in _spans(pieces) if span in self._evicted)

    def lend(self, pieces: Sequence[Piece]) -> None:
        for span in _spans(pieces):
            self._lent[span] += 1
            if span in self._evicted:
                self._dropped[span] = self._evicted.pop(span)

    def take_back(self, pieces: Sequence[Piece]) -> None:
        for span in _spans(pieces):
            self._lent[span] -= 1
            if not self._lent[span]:
                del self._lent[span]
                self._dropped.pop(span, None)

    def forget_evicted(self) -> None:
        """The engine carries out its operations now."""
        self._evicted.clear()


def _spans(pieces: Iterable[Piece]) -> set[int]:
    return {piece.span for piece in pieces}
