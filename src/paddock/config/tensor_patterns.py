"""Regular expressions for the names of tensors.

libllama compiles them as ECMAScript expressions of the C++ library. Python's rules differ, so they are translated: what
libllama accepts is accepted here, with the same meaning, and what it would refuse is an error before a model is loaded.
"""

from __future__ import annotations

import re
import string
from functools import cache

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "d": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": re.escape(string.punctuation), "space": r"\s", "s": r"\s",
    "upper": "A-Z", "w": r"\w", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_CONTROL = {"0": "\0", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANY, _NONE = r"[\s\S]", "(?!)"


def translate(pattern: str) -> str:
    """The pattern as Python writes it. Raises `ValueError` if libllama would refuse it."""
    return _Translation(pattern).run()


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._text, self._at = pattern, 0

    def run(self) -> str:
        found = self._alternatives()
        if self._at < len(self._text):
            raise ValueError("a parenthesis is closed but not opened")
        return found

    def _alternatives(self) -> str:
        parts = [self._terms()]
        while self._take("|"):
            parts.append(self._terms())
        return "|".join(parts)

    def _terms(self) -> str:
        parts = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._assertion() or self._repeated(self._atom()))
        return "".join(parts)

    def _assertion(self) -> str:
        for start in ("^", "$", r"\b", r"\B"):
            if self._take(start):
                return start
        for start in ("(?=", "(?!"):
            if self._take(start):
                return start + self._group()
        return ""

    def _group(self) -> str:
        """The rest of a group."""
        found = self._alternatives()
        if not self._take(")"):
            raise ValueError("a parenthesis is not closed")
        return found + ")"

    def _atom(self) -> str:
        if self._take("(?:"):
            return "(?:" + self._group()
        if self._take("("):
            if self._text.startswith("?", self._at):
                raise ValueError("after (? only : = and ! are known")
            return "(" + self._group()
        if self._take("["):
            return self._bracket()
        if self._take("."):
            return "."
        if self._text[self._at] in "*+?{":
            raise ValueError(f"there is nothing to repeat before {self._text[self._at]!r}")
        return self._escape() if self._take("\\") else re.escape(self._next())

    def _repeated(self, atom: str) -> str:
        """As in C++, something that is repeated can be repeated again."""
        while match := re.compile(r"[*+?]|\{(\d+)(,?)(\d*)\}|\{").match(self._text, self._at):
            self._at = match.end()
            times, least, comma, most = match[0], match[1], match[2], match[3]
            if times == "{" or (most and (not comma or int(least) > int(most))):
                raise ValueError("expected {N}, {N,} or {N,M} after {")
            atom = f"(?:{atom}{times}{'?' if self._take('?') else ''})"
        return atom

    def _escape(self) -> str:
        """After a backslash, outside of brackets."""
        char = self._next()
        if char in "dDsSwW":
            return f"\\{char}"
        if char in "123456789":
            number = char + self._matched(r"\d*")
            return f"(?:\\{number})"
        return re.escape(self._character(char))

    def _character(self, char: str) -> str:
        """The character that stands after a backslash."""
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "c":
            return chr(ord(self._next()) % 32)
        if char in "xu":
            digits = self._matched("[0-9A-Fa-f]" * (2 if char == "x" else 4))
            if not digits:
                raise ValueError(f"expected hexadecimal digits after \\{char}")
            return chr(int(digits, 16))
        return char

    # ── brackets ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _bracket(self) -> str:
        is_negated, parts = self._take("^"), []
        while not self._take("]"):
            first = self._member()
            if isinstance(first, str):
                parts.append(first)
                continue
            last = self._range_end()
            if last < ord(first[0]) and last >= 0:
                raise ValueError("a range in brackets ends before it starts")
            parts.append(_escaped(first[0]) + (f"-{_escaped(chr(last))}" if last >= 0 else ""))
        if not parts:
            return _ANY if is_negated else _NONE
        return f"[{'^' if is_negated else ''}{''.join(parts)}]"

    def _range_end(self) -> int:
        """The code of the last character of a range; -1 if there is none."""
        if not self._text.startswith("-", self._at) or self._text.startswith("-]", self._at):
            return -1
        self._at += 1
        member = self._member()
        if isinstance(member, str):
            raise ValueError("a range in brackets ends with a class")
        return ord(member[0])

    def _member(self) -> str | tuple[str]:
        """A class, or one character in a tuple."""
        if named := self._matched(r"\[[:.=].*?[:.=]\]"):
            kind, name = named[1], named[2:-2]
            if kind != named[-2] or (kind == ":" and name.lower() not in _CLASSES) or (kind != ":" and len(name) != 1):
                raise ValueError(f"{named} is not a class of characters")
            return _CLASSES[name.lower()] if kind == ":" else (name,)
        if not self._take("\\"):
            return (self._next(),)
        char = self._next()
        if char in "dDsSwW":
            return f"\\{char}"
        return ("\b" if char == "b" else self._character(char),)

    # ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, start: str) -> bool:
        found = self._text.startswith(start, self._at)
        self._at += len(start) if found else 0
        return found

    def _matched(self, pattern: str) -> str:
        match = re.compile(pattern).match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match[0] if match is not None else ""

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise ValueError("it ends in the middle of brackets or after a backslash")
        self._at += 1
        return self._text[self._at - 1]


def _escaped(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else char


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Raises `ValueError` as `translate`."""
    try:
        return re.compile(translate(pattern), re.ASCII)
    except re.error as error:
        raise ValueError(str(error)) from None
