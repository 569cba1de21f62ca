"""The positions of tokens, in models where all tokens of an image have one position (M-RoPE: Qwen-VL).

The scheduler counts tokens, and libllama finds cells by position. A token of text takes one position. An image takes as
many as its longer side has rows or columns, and its cells differ in their extensions only. So libllama can cut a
sequence before and after such an image, but not within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paddock.errors import DecodeFailed


class _Image(NamedTuple):
    """The tokens `start..end`, which have one position."""

    start: int
    end: int
    shift: int
    """How many tokens more than positions the sequence has up to here."""


class TokenPositions:
    def __init__(self) -> None:
        self._images: dict[int, list[_Image]] = {}
        """The images of each sequence, in order. Sequences without images are missing."""

    @property
    def shifts(self) -> Mapping[int, int]:
        """How many tokens more than positions sequences have. Missing: none."""
        return {sequence: images[-1].shift for sequence, images in self._images.items()}

    def position(self, sequence: int, token: int) -> int:
        """The position of a token that a sequence has, or of the next one."""
        return self.floor(sequence, token) - self._shift(sequence, token)

    def floor(self, sequence: int, token: int) -> int:
        """The last place up to here where the sequence can be cut."""
        return next((one.start for one in self._images.get(sequence, ()) if one.start < token < one.end), token)

    def ceiling(self, sequence: int, token: int) -> int:
        """The next place from here on where the sequence can be cut."""
        return next((one.end for one in self._images.get(sequence, ()) if one.start < token < one.end), token)

    def has_images(self, sequence: int) -> bool:
        return sequence in self._images

    def add(self, sequence: int, start: int, end: int, positions: int) -> None:
        """Append an image that takes so many positions."""
        shift = self._shift(sequence, start) + end - start - positions
        self._images.setdefault(sequence, []).append(_Image(start, end, shift))

    def forget(self, sequence: int, start: int) -> None:
        """The sequence keeps its first `start` tokens. An image that is cut is dropped."""
        self._set(sequence, self._until(sequence, start))

    def fork(self, source: int, target: int, length: int) -> None:
        """The target has the first `length` tokens of the source now, without an image that is cut."""
        self._set(target, self._until(source, length))

    def restore(self, sequence: int, start: int, last: int, cells: npt.NDArray[np.int32]) -> None:
        """Append tokens to a sequence of `start` tokens, of which the last has the position `last`. `cells`: a row for
        each token, with its position and then its column and its row if it belongs to an image. An image may have been
        cut into parts, which are appended in turn.
        """
        positions = cells[:, 0]
        continues = int(positions[0]) == last
        if not continues and positions[0] != self.position(sequence, start):
            raise DecodeFailed(
                f"tokens at position {positions[0]} cannot continue sequence {sequence} at token {start}"
            )
        images = self._until(sequence, start)
        begun = start - 1
        if continues and images and images[-1].end == start:
            begun = images.pop().start
        # Whether a token has the position of the one before.
        same = np.concatenate([[False, continues], positions[1:] == positions[:-1], [False]])
        for low, high in np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).tolist():
            # The last token of an image has its highest row and column.
            following = positions[high] if high < len(cells) else cells[-1, :3].max() + 1
            images.append(_Image(start + low - 1 if low else begun, start + high, start + high - int(following)))
        self._set(sequence, images)

    def _shift(self, sequence: int, token: int) -> int:
        return next((one.shift for one in reversed(self._images.get(sequence, ())) if one.end <= token), 0)

    def _until(self, sequence: int, end: int) -> list[_Image]:
        return [one for one in self._images.get(sequence, ()) if one.end <= end]

    def _set(self, sequence: int, images: list[_Image]) -> None:
        if images:
            self._images[sequence] = images
        else:
            self._images.pop(sequence, None)
