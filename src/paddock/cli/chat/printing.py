"""Prints a streamed answer as it is; `markdown.py` prints it as Markdown."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Protocol, Self, TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Printer(Protocol):
    """Prints one answer, piece by piece. As a context it ends the answer."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def progress(self, text: str) -> None:
        """Show how far the model is loaded, until the answer begins."""

    def reasoning(self, text: str) -> None: ...

    def content(self, text: str) -> None: ...


class PlainPrinter:
    """Writes the answer as it is, to a terminal without control characters. Reasoning and progress are left out."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = "\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._last.endswith("\n"):
            self._out.write("\n")
        self._out.flush()

    def progress(self, text: str) -> None:
        pass

    def reasoning(self, text: str) -> None:
        pass

    def content(self, text: str) -> None:
        self._out.write(without_controls(text) if self._out.isatty() else text)
        self._out.flush()
        self._last = text or self._last


def without_controls(text: str) -> str:
    """A model must not control the terminal: escape sequences lose their first character."""
    return _CONTROLS.sub("", text)
