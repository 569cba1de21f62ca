"""The last prompts of a worker."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

from paddock.scheduling import common_prefix
from paddock.types import Nearest

_MOST_PROMPTS, _MOST_TOKENS = 32, 1 << 19
"""At most so many prompts, with so many tokens in all (2 MiB)."""
_WIDTH = 4
"""Bytes of a token."""
_FOLLOWING = 32


class PromptHistory:
    """The last prompts, so that a report can tell an evicted prefix from one that was never seen.

    Prompts are compared only within a group: of one tenant, or of one key if it has no tenant. Used by one thread.
    """

    def __init__(self, most: int = _MOST_PROMPTS, most_tokens: int = _MOST_TOKENS) -> None:
        self._most, self._most_tokens = most, most_tokens
        self._prompts: deque[tuple[str, bytes]] = deque()
        self._tokens = 0

    def add(self, group: str, tokens: list[int]) -> None:
        """Remember a prompt that was computed."""
        self._prompts.append((group, array("i", tokens).tobytes()))
        self._tokens += len(tokens)
        while len(self._prompts) > self._most or (self._tokens > self._most_tokens and len(self._prompts) > 1):
            self._tokens -= len(self._prompts.popleft()[1]) // _WIDTH

    def nearest(self, group: str, tokens: list[int]) -> Nearest:
        """The prompt of the group that shares most with this one; of several, the newest."""
        packed = array("i", tokens).tobytes()
        best, length = b"", 0
        for other, prompt in reversed(self._prompts):
            if other == group and prompt[: length + _WIDTH] == packed[: length + _WIDTH]:
                shared = common_prefix(prompt, packed) // _WIDTH * _WIDTH
                if shared > length:
                    best, length = prompt, shared
        following = array("i", best[length : length + _WIDTH * _FOLLOWING])
        return Nearest(length // _WIDTH, following.tolist())

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Forget the prompts of the groups that are meant."""
        self._prompts = deque(one for one in self._prompts if not is_meant(one[0]))
        self._tokens = sum(len(packed) for _, packed in self._prompts) // _WIDTH
