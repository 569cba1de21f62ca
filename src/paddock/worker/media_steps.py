"""Encodes the images and sound of new requests, between the steps of running ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from paddock.engine import MediaReader
from paddock.errors import PaddockError
from paddock.scheduling import Request, Scheduler
from paddock.types import MediaSpan


class MediaSteps:
    """A request waits here until its media are encoded. Only the engine thread uses it.

    One chunk is encoded at a time: running answers get a step before the next. What the cache already has is not
    encoded. If it is evicted before the request starts, the step that needs it encodes it.
    """

    def __init__(self, media: MediaReader, scheduler: Scheduler, fail: Callable[[Request, PaddockError], None]) -> None:
        self._media = media
        self._scheduler = scheduler
        self._fail = fail
        self._waiting: list[Request] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def hold(self, request: Request) -> bool:
        """Let a request wait, if one of its chunks must be encoded. Otherwise the caller queues it."""
        if self._next(request) is None:
            return False
        self._waiting.append(request)
        return True

    def remove(self, id: int, index: int | None = None) -> None:
        self._waiting = [request for request in self._waiting if request.id != id or index not in (None, request.index)]

    def step(self, computing: Callable[[], AbstractContextManager[None]]) -> None:
        """Encode the next chunk of the oldest request, and queue the requests that have all of theirs."""
        if not self._waiting:
            return
        oldest = self._waiting[0]
        span = self._next(oldest)
        if span is not None:
            try:
                with computing():
                    begun = time.perf_counter()
                    self._media.encode(span.chunk)
                oldest.answer.clock.media += time.perf_counter() - begun
            except PaddockError as error:
                self.remove(oldest.id)
                self._fail(oldest, error)
        ready = [request for request in self._waiting if self._next(request) is None]
        self._waiting = [request for request in self._waiting if request not in ready]
        for request in ready:
            self._scheduler.add(request)

    def _next(self, request: Request) -> MediaSpan | None:
        pending = (span for span in request.media if not self._media.is_encoded(span.chunk))
        first = next(pending, None)
        if first is None or self._scheduler.cached(request) >= request.media[-1].end:
            return None
        return first
