"""Finds stop strings with an Aho-Corasick automaton: the time per character does not depend on the strings."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_NONE = -1


class StopStrings:
    """An automaton for the answers of one request. States are numbers; 0 is the state at the start of a text.

    A state stands for the longest suffix of the text that is a prefix of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        # A tree of the strings: each node has a character, its first child and its next sibling. Arrays save megabytes
        # for 32 long strings.
        self._character = array("I", [0])
        self._child = array("i", [_NONE])
        self._sibling = array("i", [_NONE])
        self._depth = array("i", [0])
        self._fallback = array("i", [0])
        """The state for the longest proper suffix."""
        self._longest = array("i", [_NONE])
        """The longest stop string that ends in this state."""
        self._first: dict[int, int] = {}
        """The children of the root by character, because there may be many."""
        for number, stop in enumerate(self._stops):
            self._add(number, stop)
        self._link()

    def __bool__(self) -> bool:
        return bool(self._stops)

    def advance(self, state: int, character: str) -> int:
        return self._next(state, ord(character))

    def held(self, state: int) -> int:
        """How many characters at the end of the text may become a stop string."""
        return self._depth[state]

    def search(self, state: int, text: str) -> tuple[int, int, str]:
        """Read more text. Returns the new state, and the start and text of the stop string that starts first.

        The start is relative to this text, so it may be negative. Without a stop string the text is empty.
        """
        best: tuple[int, int] | None = None
        for place, character in enumerate(text, 1):
            state = self._next(state, ord(character))
            number = self._longest[state]
            if number != _NONE:
                found = (place - len(self._stops[number]), number)
                best = found if best is None else min(best, found)
        return (state, 0, "") if best is None else (state, best[0], self._stops[best[1]])

    # ── construction and lookup ───────────────────────────────────────────────────────────────────────────────────────

    def _next(self, state: int, character: int) -> int:
        while state:
            child = self._find(state, character)
            if child != _NONE:
                return child
            state = self._fallback[state]
        return self._first.get(character, 0)

    def _find(self, state: int, character: int) -> int:
        child = self._child[state]
        while child != _NONE and self._character[child] != character:
            child = self._sibling[child]
        return child

    def _add(self, number: int, stop: str) -> None:
        state = 0
        for character in map(ord, stop):
            child = self._find(state, character) if state else self._first.get(character, _NONE)
            if child == _NONE:
                child = len(self._character)
                self._character.append(character)
                self._child.append(_NONE)
                self._sibling.append(self._child[state] if state else _NONE)
                self._depth.append(self._depth[state] + 1)
                self._fallback.append(0)
                self._longest.append(_NONE)
                if state:
                    self._child[state] = child
                else:
                    self._first[character] = child
            state = child
        if state and self._longest[state] == _NONE:
            self._longest[state] = number

    def _link(self) -> None:
        """Set the fallbacks level by level: the fallback of a child depends on that of its parent."""
        level = list(self._first.values())
        while level:
            following: list[int] = []
            for state in level:
                fallback = self._fallback[state]
                if self._longest[state] == _NONE:
                    self._longest[state] = self._longest[fallback]
                child = self._child[state]
                while child != _NONE:
                    self._fallback[child] = self._next(fallback, self._character[child])
                    following.append(child)
                    child = self._sibling[child]
            level = following
