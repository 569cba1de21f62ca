"""Spans of host memory that have no file yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from paddock.scheduling.prefix_tree import Node
from paddock.scheduling.quota import tenant_of
from paddock.types import Piece


@dataclass(slots=True, frozen=True)
class StoredPath:
    """A prefix in host memory: its tokens, and the pieces that hold all of them, in order."""

    namespace: str
    tokens: list[int]
    pieces: list[Piece]

    def part(self, start: int, end: int) -> list[Piece]:
        """The pieces with the tokens `start..end`."""
        found: list[Piece] = []
        at = 0
        for piece in self.pieces:
            low, high = max(start - at, 0), min(end - at, piece.length)
            if low < high:
                found.append(Piece(piece.span, piece.offset + low, high - low))
            at += piece.length
        return found


class UnwrittenSpans:
    """The spans that may lack a file, parents before children, and those of them that were evicted."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether there is a disk to write to."""
        self._ends: dict[int, tuple[Node, int]] = {}
        """Span → its last node and its length. The lower part of a split keeps its identity, so the node stays the end
        of the span.
        """
        self._begun: dict[int, tuple[Node, int]] = {}
        """The same for spans that are being written."""
        self._evicted: list[StoredPath] = []

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, span: int) -> bool:
        return span in self._ends

    def first(self, count: int) -> list[int]:
        return list(islice(self._ends, count))

    def add(self, span: int, node: Node) -> None:
        if self.is_on:
            self._ends[span] = node, len(node.tokens)

    def drop(self, span: int) -> None:
        """The span leaves host memory, after all spans below it. The engine has its bytes until its next operations."""
        self._begun.pop(span, None)
        if span in self._ends:
            self._evicted.append(self.path(span))
            del self._ends[span]

    def begin(self, path: StoredPath) -> None:
        """The spans of a path are being written, or are too few tokens for a file of their own."""
        for piece in path.pieces:
            if (end := self._ends.pop(piece.span, None)) is not None:
                self._begun[piece.span] = end

    def end(self, spans: Iterable[int], *, refused: Collection[int] = ()) -> None:
        """The spans were written, except those that the disk refused: they lack a file again."""
        for span in spans:
            if (end := self._begun.pop(span, None)) is not None and span in refused:
                self._ends[span] = end

    def forget_span(self, span: int) -> None:
        self._ends.pop(span, None)
        self._begun.pop(span, None)

    def forget_evicted(self, tenant: str | None) -> None:
        """Write no files of what this tenant, or all, had until now."""
        self._evicted = [path for path in self._evicted if tenant not in (None, tenant_of(path.namespace))]

    def take_evicted(self) -> list[StoredPath]:
        evicted, self._evicted = self._evicted, []
        return evicted

    def path(self, span: int, longest: int = 0) -> StoredPath:
        """The path down to the end of a span, and further down to spans without a file, for `longest` tokens in all."""
        end, length = self._ends[span]
        nodes = list(end.path())[::-1]
        above = [node.stored for node in nodes if node.end <= end.end - length]
        pieces = [piece for piece in above if piece is not None]
        assert len(pieces) == len(above), "what is above a stored span is stored"
        pieces.append(Piece(span, 0, length))
        tokens = [token for node in nodes for token in node.tokens]
        while (below := self._below(end)) is not None and length + len(below.tokens) <= longest:
            assert below.stored is not None, "it has no file because it is in host memory"
            pieces.append(below.stored)
            tokens += below.tokens
            length += len(below.tokens)
            end = below
        return StoredPath(end.namespace, tokens, pieces)

    def _below(self, node: Node) -> Node | None:
        """A node below this one that is the whole of a span without a file."""
        for child in node.children.values():
            if child.stored is not None and self._ends.get(child.stored.span) == (child, len(child.tokens)):
                return child
        return None
