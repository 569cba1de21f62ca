"""Decodes token bytes to text: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from paddock.text.stop_strings import StopStrings


class TextStream:
    """The text of one answer. Bytes that may become a character or a stop string are held back."""

    def __init__(self, stop: StopStrings | Sequence[str] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stops = stop if isinstance(stop, StopStrings) else StopStrings(stop)
        self._state = 0
        self._held = ""
        self.stopped = False
        self.stop_string = ""
        """The stop string that ended the text."""

    def feed(self, data: bytes) -> str:
        """Text that is certain after these bytes. After a stop string `stopped` is set, and the result is empty."""
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
        """The text that was held back. An incomplete character at the end is dropped."""
        held, self._held = self._held, ""
        return "" if self.stopped else held
