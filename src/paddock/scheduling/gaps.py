"""Whether it pays to close gaps between the streams of answers. Pure.

libllama computes adjacent streams in one pass. Each gap costs another pass over the weights in every step; to close it
costs copies, and what finished sequences in the way held.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True, frozen=True)
class Move:
    """The answer in the stream `source` gets the stream `target`."""

    source: int
    target: int
    aside: int | None
    """Where the finished sequence in `target` goes; None: there is none, or it is reclaimed."""
    seconds: float
    """What the copies cost, and what a sequence that is reclaimed costs later."""


def count_gaps(streams: Collection[int]) -> int:
    return sum(after - before > 1 for before, after in pairwise(sorted(streams)))


def seconds_of(moves: Sequence[Move], streams: Collection[int], *, steps: int, pass_seconds: float) -> float:
    """What these moves cost, with the gaps that are left between the streams in so many steps."""
    after = {*streams, *(move.target for move in moves)} - {move.source for move in moves}
    return sum(move.seconds for move in moves) + count_gaps(after) * steps * pass_seconds


def worth_making(moves: Sequence[Move], streams: Collection[int], *, steps: int, pass_seconds: float) -> Sequence[Move]:
    """The first of these moves that cost least, and as many as do. All while the price of a pass is not known."""
    if not pass_seconds:
        return moves
    counts = range(len(moves), -1, -1)
    return moves[: min(counts, key=lambda n: seconds_of(moves[:n], streams, steps=steps, pass_seconds=pass_seconds))]
