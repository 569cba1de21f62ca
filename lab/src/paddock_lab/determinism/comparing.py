"""Compares two answers byte by byte."""

from __future__ import annotations

from dataclasses import dataclass

_CONTEXT = 24


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
    if ours != theirs:
        at = next(
            (at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            min(len(ours), len(theirs)),
        )
        return Difference(at, "text", _around(ours, at), _around(theirs, at))
    if reference.deltas != other.deltas:
        pairs = zip(reference.deltas, other.deltas, strict=False)
        same = next(number for number, (one, two) in enumerate(pairs) if one != two)
        at = sum(len(text.encode()) for _, text in reference.deltas[:same])
        return Difference(at, "chunks", repr(reference.deltas[same]), repr(other.deltas[same]))
    if reference.finish_reason != other.finish_reason:
        return Difference(len(ours), "end", str(reference.finish_reason), str(other.finish_reason))
    return None


def _around(data: bytes, at: int) -> str:
    """The text around a byte, with a mark before it."""
    before, after = data[max(0, at - _CONTEXT) : at], data[at : at + _CONTEXT]
    return f"{before.decode(errors='replace')}▸{after.decode(errors='replace')}"
