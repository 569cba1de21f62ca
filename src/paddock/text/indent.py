"""Where a text is indented by less than it should be."""

from __future__ import annotations


class IndentLimit:
    """Ends a text at the first line that is indented by fewer than `least` blanks. Its first line is free."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._indent: int | None = None
        """Of the line that has just begun; None past its beginning."""
        self.ended = False

    def feed(self, text: str) -> str:
        """What of this text comes before the end. Once it was met, `ended` is set and nothing more comes."""
        if self.ended:
            return ""
        for place, letter in enumerate(text):
            if self._indent is not None:
                if letter in " \t":
                    self._indent += 1
                elif self._indent < self._least:
                    self.ended = True
                    return text[:place]
                else:
                    self._indent = None
            if letter == "\n":
                self._indent = 0
        return text
