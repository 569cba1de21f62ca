"""Ends a text at a line with too little indentation."""

from __future__ import annotations


class IndentLimit:
    """Ends a text at the first line that starts with fewer than `least` blanks. The first line may have any indent."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._indent: int | None = None
        """Blanks so far at the start of a line; None after the start."""
        self.ended = False

    def feed(self, text: str) -> str:
        """The part of this text before the end. After the end `ended` is set, and the result is empty."""
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
