"""One request running in a worker."""

from __future__ import annotations

from collections.abc import Callable

from paddock.errors import PaddockError, ReadTooSlowly
from paddock.fleet.catalogue.adapters import fingerprint
from paddock.replicas.deltas import Deltas
from paddock.types import Adapters, ModelInfo
from paddock.wire.messages import Accepted, Delta

_MOST_UNREAD = 65536
"""Unread tokens of a request, including reported alternatives: ten or twenty megabytes."""


class Attempt(Deltas):
    """Buffers unread deltas up to a limit; then the request ends with `ReadTooSlowly`, after those deltas."""

    def __init__(
        self, abort: Callable[[], None], info: ModelInfo | None, answers: int = 1, adapters: Adapters = ()
    ) -> None:
        super().__init__(answers)
        self._abort = abort
        self.unfinished = answers
        self._behind = 0
        self.adapters = adapters
        """The active adapters."""
        self.worker_info = info
        self.fingerprint = fingerprint(info, adapters) if info is not None else ""
        self.n_ctx = info.n_ctx if info is not None else 0
        self.prompt_tokens = 0
        self.prompt: list[tuple[int, bytes]] = []
        """The prompt's tokens and their texts, if requested."""

    def _read(self, delta: Delta) -> Delta:
        self._behind -= _weight(delta)
        return super()._read(delta)

    def close(self) -> None:
        super().close()
        self._abort()

    def put(self, event: Accepted | Delta | PaddockError) -> None:
        match event:
            case Delta():
                assert self._accepted.done(), "a worker accepts a request before it answers"
                self._events.put_nowait(event)
                self._behind += _weight(event)
                if self._behind > _MOST_UNREAD and not self._over:
                    self._end(ReadTooSlowly("the client reads the stream too slowly"))
                    self._abort()
            case Accepted():
                self.prompt_tokens = event.prompt_tokens
                self.prompt = event.prompt or []
                self._accept()
            case PaddockError():
                self._end(event)


def _weight(delta: Delta) -> int:
    """The number of buffered tokens. The prompt's tokens come once and are not counted."""
    return 1 + sum(len(item.top) for item in delta.logprobs or ())
