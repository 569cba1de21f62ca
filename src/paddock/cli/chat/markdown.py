"""Prints a streamed answer as Markdown on a terminal. Needs rich (paddock-llm[run])."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from paddock.cli.chat.printing import without_controls

_REFRESH = 12
"""Times per second that the unfinished block is drawn."""


class MarkdownPrinter:
    """Prints every finished block once, and redraws only the last, unfinished one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=_REFRESH, transient=True, vertical_overflow="visible")
        self._pending = ""
        self._is_reasoning = False

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(Text(""))
        self._live.stop()
        self._flush()

    def progress(self, text: str) -> None:
        self._live.update(Text(text, style="dim"))

    def reasoning(self, text: str) -> None:
        self._add(text, is_reasoning=True)

    def content(self, text: str) -> None:
        self._add(text, is_reasoning=False)

    def _add(self, text: str, *, is_reasoning: bool) -> None:
        if is_reasoning != self._is_reasoning:
            self._flush()
            self._is_reasoning = is_reasoning
        finished, self._pending = split_finished(self._pending + without_controls(text))
        if finished.strip():
            self._console.print(self._styled(finished))
        self._live.update(self._styled(self._pending))

    def _flush(self) -> None:
        pending, self._pending = self._pending, ""
        if pending.strip():
            self._console.print(self._styled(pending))

    def _styled(self, text: str) -> Markdown | Text:
        return Text(text.strip("\n"), style="dim italic") if self._is_reasoning else Markdown(text)


def split_finished(text: str) -> tuple[str, str]:
    """The finished blocks of Markdown, and the rest. A block ends at an empty line outside a code fence."""
    end, position, fence = 0, 0, ""
    for line in text.splitlines(keepends=True):
        position += len(line)
        stripped = line.strip()
        if fence:
            fence = "" if stripped.startswith(fence) and not stripped.strip(fence[0]) else fence
        elif stripped.startswith(("```", "~~~")):
            fence = stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]
        if not fence and not stripped and line.endswith("\n"):
            end = position
    return text[:end], text[end:]
