"""The words at which two texts part."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_WORD = 40
"""The most characters before the difference that are shown as a part of the same word."""
_LONGEST_CHARACTER = 4
"""Bytes in UTF-8. Each byte of a character that is cut becomes a replacement character."""
_MOST = 48
"""The most characters that are shown of one side."""


@dataclass(frozen=True, slots=True)
class Difference:
    shared: int
    """How many characters both texts share."""
    text: str
    """The first words of the one that differ, from the start of a word."""
    known: str | None
    """The same of the other one. None if it is unknown."""
    is_same_text: bool = False
    """One text begins with the other: the same text in other tokens, as far as it is known."""


def difference(text: str, known: str | None, shared: int) -> Difference:
    """Where the texts part. About the first `shared` characters are known to be equal: the last may be cut."""
    if known is not None:
        shortest = min(len(text), len(known))
        shared = max(min(shared, shortest) - _LONGEST_CHARACTER, 0)
        while shared < shortest and text[shared] == known[shared]:
            shared += 1
    is_same = known is not None and shared == min(len(text), len(known))
    start = _word_start(text, shared)
    return Difference(shared, _words(text, start, shared), known and _words(known, start, shared), is_same)


def _word_start(text: str, at: int) -> int:
    start = at
    while start > max(at - _LONGEST_WORD, 0) and not text[start - 1].isspace():
        start -= 1
    return start


def _words(text: str, start: int, parted: int) -> str:
    """Whole words from `start` on, if possible, of which at least a part is after `parted`."""
    shown = text[start : start + _MOST]
    if start + _MOST >= len(text):
        return shown.rstrip()
    last = max((at for at, letter in enumerate(shown) if letter.isspace() and start + at > parted), default=0)
    return f"{shown[:last].rstrip() if last else shown}…"


def first_word(words: str) -> str:
    """The first of some words, for a short line."""
    first = words.split(maxsplit=1)
    return first[0] if first else words
