"""Where in a text its last tokens occurred before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

# Places are found by their last two tokens. Of this many latest places, the one that has most tokens in common wins.
_CANDIDATES = 8
# More equal tokens than this before a place say nothing more about what follows.
LONGEST_MATCH = 32
_MULTIPLIERS = 0x9E3779B1, 0x85EBCA6B


class PromptNgrams:
    """The places of all pairs of tokens in a prompt, sorted by hash. All answers to a prompt share it.

    Built at once with numpy: 100,000 tokens take a few milliseconds and about a megabyte.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.size = len(tokens)
        array = np.array(tokens, np.int64).astype(np.uint32)  # tokens of images are negative
        hashes = _hashes(array[:-1], array[1:]) if len(array) > 1 else np.empty(0, np.uint16)
        self._ends = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[self._ends]

    def places(self, first: int, second: int) -> Iterator[int]:
        """Where these two tokens may have occurred, the latest place first: positions of the token after them. A hash
        can be wrong.
        """
        # The same as `_hashes`, faster for one pair.
        key = np.uint16(((first * _MULTIPLIERS[0] + second * _MULTIPLIERS[1]) >> 16) & 0xFFFF)
        end = int(self._hashes.searchsorted(key, "right"))
        if not end or self._hashes[end - 1] != key:
            return
        start = int(self._hashes.searchsorted(key, "left"))
        for place in self._ends[max(start, end - _CANDIDATES) : end][::-1].tolist():
            yield place + 2


class NgramIndex:
    """The places of all pairs of tokens in a text that grows: a prompt and its answer. Adding a token and finding a
    place take a time that does not depend on the length of the text.
    """

    def __init__(self, tokens: list[int], prompt: PromptNgrams) -> None:
        self._tokens = tokens
        """The request's own list, which only grows."""
        self._prompt = prompt
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        """For each indexed token of the answer: where the same two tokens occurred before. 0: nowhere."""
        self._size = prompt.size
        self.extend()

    def extend(self) -> None:
        """Add the new tokens of the text."""
        tokens = self._tokens
        for place in range(self._size, len(tokens)):
            pair = (tokens[place - 1], tokens[place]) if place else (-1, tokens[0])
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = place + 1
        self._size = len(tokens)

    def find(self) -> tuple[int, int] | None:
        """The position of the token that followed the longest earlier occurrence of the last tokens, and how many
        tokens are equal there. Of several, the latest. None: the last two tokens occur nowhere else.
        """
        if self._size < 2:
            return None
        best: tuple[int, int] | None = None
        for place in self._places():
            length = self._common_suffix(place)
            if length >= 2 and (best is None or length > best[1]):
                best = place, length
                if length >= LONGEST_MATCH:
                    break
        return best

    def _places(self) -> Iterator[int]:
        """Candidates, the latest first."""
        first, second = self._tokens[-2:]
        place = self._latest.get((first, second), 0)
        for _ in range(_CANDIDATES):
            if not place:
                break
            if place < self._size:
                yield place
            place = self._earlier[place - 1 - self._prompt.size]
        yield from (place for place in self._prompt.places(first, second) if place < self._size)

    def _common_suffix(self, place: int) -> int:
        """How many tokens before `place` equal the last tokens of the text."""
        tokens, end = self._tokens, self._size
        most = min(LONGEST_MATCH, place)
        length = 0
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length


def _hashes(first: npt.NDArray[np.uint32], second: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Of 16 bits: numpy sorts those in linear time."""
    mixed = first * np.uint32(_MULTIPLIERS[0]) + second * np.uint32(_MULTIPLIERS[1])
    return (mixed >> np.uint32(16)).astype(np.uint16)
