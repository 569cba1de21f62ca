"""What happened to one request, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from paddock.types import FinishReason, ModelKind, Origin, Timings, Usage
from paddock.wire.messages import Delta

OK: Final = "ok"
CANCELLED: Final = "left"


class RequestRecord:
    """Calls `on_first` at its first token, ends once and then calls its listeners. Times are of the monotonic clock;
    None for stages not reached.
    """

    def __init__(
        self,
        model: str,
        kind: ModelKind,
        origin: Origin,
        listener: Callable[[RequestRecord], None],
        on_first: Callable[[RequestRecord], None] = lambda _: None,
    ) -> None:
        self.model = model
        self.kind = kind
        self.origin = origin
        self._listeners = [listener]
        self._on_first = on_first
        self._unfinished = 1
        self.began = time.monotonic()
        self.replica = ""
        """The replica that has it, if there are several."""
        self.ready: float | None = None
        """When its model was loaded."""
        self.accepted: float | None = None
        """When its prompt was read and it entered the queue."""
        self.first: float | None = None
        """When the first token arrived."""
        self.ended: float | None = None
        self.outcome: str = CANCELLED
        """`ok`, `left` if the client did not wait for the end, or an error code."""
        self.prompt_tokens = 0
        self._tokens: dict[int, int] = {}
        self._cached: int | None = None
        self.finishes: list[FinishReason] = []
        self.timings: Timings | None = None
        """Of the completion that ended last, measured by its worker."""

    @property
    def failed(self) -> bool:
        return self.outcome not in (OK, CANCELLED)

    @property
    def used(self) -> Usage:
        """The tokens so far. For a request that ended early: the received ones, without cached tokens."""
        return Usage(self.prompt_tokens, sum(self._tokens.values()), self._cached or 0)

    def model_ready(self, replica: str = "") -> None:
        self.replica = replica
        if self.ready is None:
            self.ready = time.monotonic()

    def mark_accepted(self, prompt_tokens: int, answers: int, replica: str = "") -> None:
        """A worker accepted it; called again after a retry."""
        self.replica = replica
        self.accepted = time.monotonic()
        self.prompt_tokens, self._cached = prompt_tokens, None
        self._unfinished = answers
        self._tokens.clear()
        self.finishes.clear()

    def count_delta(self, delta: Delta) -> None:
        if delta.progress is not None:
            return
        if self.first is None:
            self.first = time.monotonic()
            self._on_first(self)
        self._tokens[delta.index] = self._tokens.get(delta.index, 0) + 1
        if delta.finish is None or delta.usage is None:
            return
        # A remote server may report it only at the end.
        self.prompt_tokens = delta.usage.prompt_tokens
        self._tokens[delta.index] = delta.usage.completion_tokens
        self.finishes.append(delta.finish)
        cached = delta.usage.cached_tokens
        self._cached = cached if self._cached is None else min(cached, self._cached)
        self.timings = delta.timings or self.timings
        self._unfinished -= 1
        if not self._unfinished:
            self.end(OK)

    def end(self, outcome: str) -> None:
        """Only the first call counts."""
        if self.ended is None:
            self.ended = time.monotonic()
            self.outcome = outcome
            for listener in self._listeners:
                listener(self)

    def when_ended(self, listener: Callable[[RequestRecord], None]) -> None:
        """Call this one too, before the last delta is delivered."""
        if self.ended is not None:
            listener(self)
        else:
            self._listeners.append(listener)
