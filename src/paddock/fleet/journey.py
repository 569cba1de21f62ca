"""A request's way through the fleet: where it has come, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from paddock.types import FinishReason, ModelKind, Origin, Timings, Usage
from paddock.wire import Delta

DONE: Final = "ok"
LEFT: Final = "left"


class Journey:
    """Ends once, and is told of then. Times are of the monotonic clock; None of what never came to be."""

    def __init__(self, model: str, kind: ModelKind, origin: Origin, tell: Callable[[Journey], None]) -> None:
        self.model = model
        self.kind = kind
        self.origin = origin
        self._listeners = [tell]
        self._unfinished = 1
        self.began = time.monotonic()
        self.replica = ""
        """Who has it, where there are several."""
        self.ready: float | None = None
        """When its model was there."""
        self.accepted: float | None = None
        """When its prompt was understood, and it began to wait for its turn."""
        self.first: float | None = None
        """When the first of an answer came."""
        self.ended: float | None = None
        self.outcome = LEFT
        """`ok`, `left` where nobody waited for the end, or the code of an error."""
        self.prompt_tokens = 0
        self._told: dict[int, int] = {}
        self._cached: int | None = None
        self.finishes: list[FinishReason] = []
        self.timings: Timings | None = None
        """Of the answer that ended last, as its worker measured them."""

    @property
    def failed(self) -> bool:
        return self.outcome not in (DONE, LEFT)

    @property
    def used(self) -> Usage:
        """The tokens so far. Of an answer that was broken off these are the ones that were heard of, at least, and what
        of its prompt was known before nobody has said.
        """
        return Usage(self.prompt_tokens, sum(self._told.values()), self._cached or 0)

    def entered(self, replica: str = "") -> None:
        self.replica = replica
        if self.ready is None:
            self.ready = time.monotonic()

    def was_accepted(self, prompt_tokens: int, answers: int, replica: str = "") -> None:
        """By a worker; by another one, should the first have died."""
        self.replica = replica
        self.accepted = time.monotonic()
        self.prompt_tokens, self._cached = prompt_tokens, None
        self._unfinished = answers
        self._told.clear()
        self.finishes.clear()

    def told(self, delta: Delta) -> None:
        if delta.progress is not None:
            return
        if self.first is None:
            self.first = time.monotonic()
        self._told[delta.index] = self._told.get(delta.index, 0) + 1
        if delta.finish is None or delta.usage is None:
            return
        # Of a server elsewhere it may not have been known before.
        self.prompt_tokens = delta.usage.prompt_tokens
        self._told[delta.index] = delta.usage.completion_tokens
        self.finishes.append(delta.finish)
        cached = delta.usage.cached_tokens
        self._cached = cached if self._cached is None else min(cached, self._cached)
        self.timings = delta.timings or self.timings
        self._unfinished -= 1
        if not self._unfinished:
            self.end(DONE)

    def end(self, outcome: str) -> None:
        """The first time counts."""
        if self.ended is None:
            self.ended = time.monotonic()
            self.outcome = outcome
            for tell in self._listeners:
                tell(self)

    def when_ended(self, tell: Callable[[Journey], None]) -> None:
        """Also tell this one, before anybody hears the last of the answer."""
        if self.ended is not None:
            tell(self)
        else:
            self._listeners.append(tell)
