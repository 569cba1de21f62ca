"""Times of day: "22:00-06:00". Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FORM = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)")
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Window:
    """From one minute of the day until another, which may be on the next day."""

    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """Raises `ValueError`."""
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError("expected a time of day such as 22:00-06:00")
        begin, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
        if end > _DAY:
            raise ValueError("a day ends at 24:00")
        if begin == end:
            raise ValueError("it begins and ends at the same time: leave it out for the whole day")
        return cls(begin, end)

    def contains(self, minute: int) -> bool:
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


def is_open(windows: Sequence[Window], minute: int) -> bool:
    """Whether lines may be started in this minute of the day. Without windows: always."""
    return not windows or any(window.contains(minute) for window in windows)
