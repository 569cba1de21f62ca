"""Text that comes piece by piece, read as if all of it were there already.

Everything here is a generator that pauses wherever more text is needed; whoever adds some resumes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of a parser: pauses for more text and comes to a T."""

BARE_VALUE = re.compile(r"[^\s,\]}]*")
"""A JSON value that is no text, array or object."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Malformed(Exception):
    """The text is not what it was read as."""


class Reader:
    """A text that grows, and a place in it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ended = False

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True

    @property
    def at_end(self) -> bool:
        return not self._text[self._at :].strip()

    def _more(self) -> Reading[None]:
        if self._ended:
            self._refuse()
        yield

    def _refuse(self) -> NoReturn:
        raise Malformed

    def _peek(self) -> Reading[str]:
        """The next character that is not whitespace, or nothing at the end. Whitespace before it is passed over."""
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            yield

    def _follows(self, marker: str) -> Reading[bool]:
        """Whether this comes next, in which case it is passed over."""
        marker = marker.strip()
        yield from self._peek()
        while (
            not self._ended and marker.startswith(self._text[self._at :]) and len(self._text) - self._at < len(marker)
        ):
            yield
        found = self._text.startswith(marker, self._at)
        self._at += len(marker) * found
        return found

    def _expect(self, marker: str) -> Reading[None]:
        if not (yield from self._follows(marker)):
            self._refuse()

    def _close(self, marker: str) -> Reading[None]:
        """The same, unless all text ends here: models may leave it to the token that ends their turn."""
        if (yield from self._peek()):
            yield from self._expect(marker)

    def _until(self, marker: str, *, longest: int | None = None) -> Reading[str]:
        """Everything before the marker, which is passed over."""
        begin = searched = self._at
        while (found := self._text.find(marker, searched)) < 0:
            if longest is not None and len(self._text) - begin > longest:
                self._refuse()
            searched = max(begin, len(self._text) - len(marker) + 1)
            yield from self._more()
        self._at = found + len(marker)
        return self._text[begin:found]

    def _run_of(self, pattern: re.Pattern[str]) -> Reading[str]:
        """All that fits the pattern, once it is clear that no more does."""
        yield from self._peek()
        while True:
            found = pattern.match(self._text, self._at)
            assert found is not None, "it may be empty"
            if found.end() < len(self._text) or self._ended:
                self._at = found.end()
                return found[0]
            yield

    def _value(self, pass_on: Callable[[str], None] = lambda piece: None) -> Reading[str]:
        """The text of a JSON value, which is also passed on, piece by piece as it comes."""
        first = yield from self._peek()
        if first not in '{["' or not first:
            text = yield from self._run_of(BARE_VALUE)
            loads(text)
            return text
        begin = sent = self._at
        depth, quoted, escaped = 0, False, False
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                self._at += 1
                if quoted:
                    quoted = escaped or character != '"'
                    escaped = not escaped and character == "\\"
                elif character == '"':
                    quoted = True
                else:
                    depth += (character in "{[") - (character in "}]")
                if depth == 0 and not quoted:
                    pass_on(self._text[sent : self._at])
                    loads(self._text[begin : self._at])
                    return self._text[begin : self._at]
            pass_on(self._text[sent : self._at])
            sent = self._at
            yield from self._more()


class Markers:
    """Finds the first of several texts in a text that may go on."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._beginnings = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._longest = max(map(len, markers), default=0)
        ordered = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if markers else None

    def find(self, text: str, *, ended: bool) -> tuple[int, str]:
        """Where the first marker is, and which: the longest there. Nothing where it is not yet clear or there is none,
        with the place up to which that is certain.
        """
        found = self._pattern.search(text) if self._pattern is not None else None
        if not ended:
            for begin in range(max(0, len(text) - self._longest + 1), len(text)):
                if found is not None and begin > found.start():
                    break
                if text[begin:] in self._beginnings:
                    return begin, ""
        return (found.start(), found[0]) if found is not None else (len(text), "")


def loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Any) -> str:
    """JSON that can be sent: without numbers that it cannot write, and without halves of characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise Malformed from None
    if LONE_SURROGATE.search(text):
        raise Malformed
    return text
