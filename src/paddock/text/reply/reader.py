"""Incremental parsing: read text that arrives in pieces as if it were complete.

A method that may need more text is a generator. It yields when the text ends too early; the caller adds text and
resumes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from paddock.types import CallDelta, Tool

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A parser step: it pauses for more text and returns a T."""

BARE_VALUE = re.compile(r"[^\s,\]}]*")
"""A JSON number, boolean or null."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_HEADER = 300


class Malformed(Exception):
    """The text does not have the expected form."""


class Reader:
    """A growing text and a position in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ended = False
        """The text is complete."""

    def refuse(self) -> NoReturn:
        raise Malformed

    def _more(self) -> Reading[None]:
        if self.ended:
            self.refuse()
        yield

    def peek(self) -> Reading[str]:
        """Skip whitespace and return the next character, or an empty string at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            yield

    def follows(self, marker: str) -> Reading[bool]:
        """Skip whitespace and then the marker. Returns whether the marker was there."""
        marker = marker.strip()
        yield from self.peek()
        while not self.ended and marker.startswith(self.text[self.at :]) and len(self.text) - self.at < len(marker):
            yield
        found = self.text.startswith(marker, self.at)
        self.at += len(marker) * found
        return found

    def expect(self, marker: str) -> Reading[None]:
        if not (yield from self.follows(marker)):
            self.refuse()

    def close(self, marker: str) -> Reading[None]:
        """Expect the marker unless the text ends here: the token that ends the turn may replace it."""
        if (yield from self.peek()):
            yield from self.expect(marker)

    def until(self, marker: str, *, longest: int | None = None) -> Reading[str]:
        """Read the text before the marker, and skip the marker."""
        begin = searched = self.at
        while (found := self.text.find(marker, searched)) < 0:
            if longest is not None and len(self.text) - begin > longest:
                self.refuse()
            searched = max(begin, len(self.text) - len(marker) + 1)
            yield from self._more()
        self.at = found + len(marker)
        return self.text[begin:found]

    def header(self, marker: str) -> Reading[str]:
        """The same for a short text, such as a function's name."""
        return self.until(marker, longest=_LONGEST_HEADER)

    def run_of(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read all that matches the pattern, which may be nothing."""
        yield from self.peek()
        while True:
            found = pattern.match(self.text, self.at)
            assert found is not None, "the pattern matches an empty text"
            if found.end() < len(self.text) or self.ended:
                self.at = found.end()
                return found[0]
            yield

    def items(self, closing: str, read_one: Callable[[], Reading[T]]) -> Reading[list[T]]:
        """Read items with commas between them, up to the closing bracket."""
        found: list[T] = []
        while not (yield from self.follows(closing)):
            if found:
                yield from self.expect(",")
            found.append((yield from read_one()))
        return found

    def json(self, pass_on: Callable[[str], None] = lambda piece: None) -> Reading[str]:
        """Read a JSON value and return its text. `pass_on` gets the pieces of an array, object or string as they
        arrive.
        """
        first = yield from self.peek()
        if first not in '{["' or not first:
            text = yield from self.run_of(BARE_VALUE)
            loads(text)
            return text
        begin = sent = self.at
        depth, quoted, escaped = 0, False, False
        while True:
            while self.at < len(self.text):
                character = self.text[self.at]
                self.at += 1
                if quoted:
                    quoted = escaped or character != '"'
                    escaped = not escaped and character == "\\"
                elif character == '"':
                    quoted = True
                else:
                    depth += (character in "{[") - (character in "}]")
                if depth == 0 and not quoted:
                    pass_on(self.text[sent : self.at])
                    loads(self.text[begin : self.at])
                    return self.text[begin : self.at]
            pass_on(self.text[sent : self.at])
            sent = self.at
            yield from self._more()


@dataclass(slots=True)
class Parsed:
    """What a piece of text adds to a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class CallReader(Reader):
    """The reader that a shape gets (`Calls.read`). Its methods raise `Malformed` if the text is no valid call."""

    def __init__(self, text: str, tools: Sequence[Tool], call_id: Callable[[int], str]) -> None:
        super().__init__(text)
        self.tools = {tool.name: tool for tool in tools}
        self.call_started = False
        """The name of the current call has been reported."""
        self._call_id = call_id
        self._call_begin = 0
        """The position at which the current call begins."""
        self._call_count = 0
        self._parsed = Parsed()

    def begin_call(self, name: str) -> None:
        if name not in self.tools or self.call_started:
            self.refuse()
        self.call_started = True
        self._parsed.calls.append(CallDelta(self._call_count, self._call_id(self._call_count), name))

    def add_arguments(self, text: str) -> None:
        """Report a piece of the JSON object with the arguments."""
        if text:
            self._parsed.calls.append(CallDelta(self._call_count, arguments=text))

    def end_call(self) -> None:
        self._call_count += 1
        self.call_started = False
        self._call_begin = self.at

    def call_by_argument(
        self, name: str, closing: str, read_argument: Callable[[], Reading[tuple[str, str]]], *, comma: str = ""
    ) -> Reading[None]:
        """Read a call with separate arguments, up to its closing marker. `read_argument` returns the name of an
        argument and its value as JSON.
        """
        self.begin_call(name)
        self.add_arguments("{")
        seen: set[str] = set()
        while not (yield from self.follows(closing)):
            if seen and comma:
                yield from self.expect(comma)
            key, value = yield from read_argument()
            if key in seen:
                self.refuse()
            self.add_arguments(f"{', ' if seen else ''}{dumps(key)}: {value}")
            seen.add(key)
        self.add_arguments("}")
        self.end_call()


class Markers:
    """Finds the first of several markers in a growing text."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._prefixes = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._longest = max(map(len, markers), default=0)
        ordered = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if markers else None

    def find(self, text: str, *, ended: bool) -> tuple[int, str]:
        """The position of the first marker, and the longest marker there.

        The marker is empty if there is none, or if the end of the text may still become one. The position is then the
        end of the text that certainly contains no marker.
        """
        found = self._pattern.search(text) if self._pattern is not None else None
        if not ended:
            for begin in range(max(0, len(text) - self._longest + 1), len(text)):
                if found is not None and begin > found.start():
                    break
                if text[begin:] in self._prefixes:
                    return begin, ""
        return (found.start(), found[0]) if found is not None else (len(text), "")


def loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Malformed from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Any) -> str:
    """Valid JSON: without NaN, infinity and lone surrogates."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise Malformed from None
    if LONE_SURROGATE.search(text):
        raise Malformed
    return text
