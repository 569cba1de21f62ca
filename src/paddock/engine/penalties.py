"""Penalties for tokens that were used before: repetition, frequency and presence penalties, and DRY.

A penalty is computed for all rows with the same settings at once. It knows its settings only, so that nothing else can
differ among these rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from paddock.engine.candidates import Floats, Ids, Logits
from paddock.engine.history import History
from paddock.types import SamplingParams

# A token with this penalty is never chosen, and float32 can hold it.
_LARGEST_PENALTY = 1e34


class Counted(Protocol):
    """The text before a row, as penalties see it: see `History`."""

    def counts(self, window: int) -> tuple[Ids, Floats]: ...
    def repeats(self, window: int, least: int) -> tuple[Ids, Ids]: ...


class Penalized(NamedTuple):
    """A row of logits, and the text before it."""

    start: int
    """Where the row starts in the logits of all rows."""
    history: Counted


class Changes(NamedTuple):
    places: Ids
    """Each once."""
    before: Logits
    after: Logits


class Penalty(Protocol):
    """Equal penalties have the same settings."""

    @property
    def only_lowers(self) -> bool:
        """Whether it makes no token more likely."""

    @abstractmethod
    def changes(self, logits: Logits, rows: Sequence[Penalized]) -> Changes:
        """What this penalty changes in the logits of all rows. The caller does it."""

    def __hash__(self) -> int: ...


class SelectedText:
    """The same text for a row that has only some tokens, in ascending order. Ids become places in this row."""

    def __init__(self, text: History, ids: Ids) -> None:
        self._text, self._ids = text, ids

    def counts(self, window: int) -> tuple[Ids, Floats]:
        counts = self._text.counts_of(self._ids, window)  # a long text has many more tokens than this row
        (places,) = counts.nonzero()
        return places, counts[places]

    def repeats(self, window: int, least: int) -> tuple[Ids, Ids]:
        ids, lengths = self._text.repeats(window, least)
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        is_there = self._ids[places] == ids
        return places[is_there], lengths[is_there]


@dataclass(frozen=True, slots=True)
class RepeatPenalty:
    """For each token of the text: repetition, frequency and presence penalties."""

    window: int
    repeat: float
    presence: float
    frequency: float

    @classmethod
    def of(cls, params: SamplingParams) -> RepeatPenalty:
        return cls(params.repeat_last_n, params.repeat_penalty, params.presence_penalty, params.frequency_penalty)

    @staticmethod
    def is_active(params: SamplingParams) -> bool:
        changes = params.repeat_penalty != 1 or params.presence_penalty or params.frequency_penalty
        return bool(params.repeat_last_n and changes)

    @property
    def only_lowers(self) -> bool:
        return self.repeat >= 1 and self.presence >= 0 and self.frequency >= 0

    def changes(self, logits: Logits, rows: Sequence[Penalized]) -> Changes:
        counted = [row.history.counts(self.window) for row in rows]
        places = _joined([(row.start, ids) for row, (ids, _) in zip(rows, counted, strict=True)])
        before = logits.take(places, mode="clip")  # the ids were checked; this mode does not check them again
        after = before
        if self.repeat != 1:
            # The product for negative logits, the quotient for positive ones.
            nearer = np.minimum if self.repeat >= 1 else np.maximum
            after = before * self.repeat
            nearer(after, before / self.repeat, out=after)
        if self.frequency or self.presence:
            amounts = np.empty(len(places), np.float64)
            end = 0
            for _, counts in counted:
                np.multiply(counts, self.frequency, out=amounts[end : (end := end + len(counts))])
            np.subtract(after, amounts, out=amounts)
            if self.presence:
                amounts -= self.presence
            after = amounts.astype(np.float32)
        return Changes(places, before, after)


@dataclass(frozen=True, slots=True)
class SequencePenalty:
    """DRY: for tokens that would continue a repeated sequence. The penalty grows with the sequence."""

    window: int
    multiplier: float
    base: float
    allowed_length: int

    @classmethod
    def of(cls, params: SamplingParams) -> SequencePenalty:
        return cls(params.dry_penalty_last_n, params.dry_multiplier, params.dry_base, params.dry_allowed_length)

    @staticmethod
    def is_active(params: SamplingParams) -> bool:
        return bool(params.dry_multiplier and params.dry_penalty_last_n) and params.dry_base >= 1

    @property
    def only_lowers(self) -> bool:
        return self.multiplier >= 0

    def changes(self, logits: Logits, rows: Sequence[Penalized]) -> Changes:
        found = [row.history.repeats(self.window, self.allowed_length) for row in rows]
        places = _joined([(row.start, ids) for row, (ids, _) in zip(rows, found, strict=True)])
        lengths = np.concatenate([lengths for _, lengths in found])
        # Sorted by place, then by length: the last key of each place has the longest sequence.
        keys = np.sort((places << 32 | lengths)[lengths >= max(self.allowed_length, 0)])
        if not len(keys):
            return Changes(keys, logits[keys], logits[keys])
        keys = keys[np.append(keys[1:] >> 32 != keys[:-1] >> 32, True)]
        places = keys >> 32
        # There are few different lengths, however long the text.
        lengths, which = np.unique(keys & 0xFFFFFFFF, return_inverse=True)
        penalties = np.array([self._penalty(length) for length in lengths.tolist()], np.float32)
        before = logits[places]
        return Changes(places, before, before - penalties[which])

    def _penalty(self, length: int) -> float:
        power = min((length - self.allowed_length) * math.log(self.base), math.log(_LARGEST_PENALTY))
        return min(self.multiplier * math.exp(power), _LARGEST_PENALTY)


def _joined(parts: list[tuple[int, Ids]]) -> Ids:
    """All ids, as places of their rows."""
    places = np.empty(sum(len(ids) for _, ids in parts), np.int64)
    end = 0
    for start, ids in parts:
        np.add(ids, start, out=places[end : (end := end + len(ids))])
    return places
