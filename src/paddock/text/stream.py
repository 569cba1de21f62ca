"""Token bytes → text that may be shown: whole characters only, and never a piece of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one answer as it grows. What might still become a stop string or a character is held back."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False
        self.stop_string = ""
        """The one that was met."""

    def feed(self, data: bytes) -> str:
        """The text that these bytes release. Once a stop string is met, `stopped` is set and nothing more comes."""
        if self.stopped:
            return ""
        text = self._held + self._decode(data)
        self._held = ""
        if not self._stop:
            return text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            cut, self.stop_string = min(found, key=lambda one: one[0])
            self.stopped = True
            return text[:cut]
        keep = max(_overlap(text, stop) for stop in self._stop)
        if keep:
            self._held = text[-keep:]
            return text[:-keep]
        return text

    def finish(self) -> str:
        """The held-back text, which turned out to be no stop string. Half a character at the end is dropped."""
        held, self._held = self._held, ""
        return "" if self.stopped else held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, shorter than the whole of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
