"""Token bytes → text that may be shown: whole characters only, and never a piece of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from paddock.text.stop_strings import StopStrings


class TextStream:
    """The text of one answer as it grows. What might still become a stop string or a character is held back."""

    def __init__(self, stop: StopStrings | Sequence[str] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stops = stop if isinstance(stop, StopStrings) else StopStrings(stop)
        self._state = 0
        self._held = ""
        self.stopped = False
        self.stop_string = ""
        """The one that was met."""

    def feed(self, data: bytes) -> str:
        """The text that these bytes release. Once a stop string is met, `stopped` is set and nothing more comes."""
        if self.stopped:
            return ""
        new = self._decode(data)
        if not self._stops:
            return new
        self._state, cut, self.stop_string = self._stops.search(self._state, new)
        text = self._held + new
        if self.stop_string:
            self.stopped = True
            return text[: len(self._held) + cut]
        shown = len(text) - self._stops.held(self._state)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """The held-back text, which turned out to be no stop string. Half a character at the end is dropped."""
        held, self._held = self._held, ""
        return "" if self.stopped else held
