"""Compares two answers byte by byte."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.receipts import first_difference as first_bytes
from paddock.receipts import first_place


@dataclass(frozen=True)
class Transcript:
    """The text of each event of a stream, and the finish reason."""

    deltas: tuple[tuple[str, str], ...]
    finish_reason: str | None

    @property
    def data(self) -> bytes:
        return "".join(text for _, text in self.deltas).encode()


@dataclass(frozen=True)
class Difference:
    at: int
    """The first byte that differs."""
    what: str
    reference: str
    """The text around this byte in the reference."""
    other: str
    """The text around this byte in the other answer."""


def first_difference(reference: Transcript, other: Transcript) -> Difference | None:
    """None if text, chunks and finish reason are the same."""
    ours, theirs = reference.data, other.data
    if found := first_bytes(ours, theirs):
        return Difference(found.at, "text", found.ours, found.theirs)
    if reference.deltas != other.deltas:
        same = first_place(reference.deltas, other.deltas)
        at = sum(len(text.encode()) for _, text in reference.deltas[:same])
        one, two = (each.deltas[same] if same < len(each.deltas) else None for each in (reference, other))
        return Difference(at, "chunks", repr(one), repr(two))
    if reference.finish_reason != other.finish_reason:
        return Difference(len(ours), "end", str(reference.finish_reason), str(other.finish_reason))
    return None
