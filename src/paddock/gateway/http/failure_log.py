"""What went wrong with a request, for its line in the log: also in a stream, whose status says 200."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from paddock.errors import PaddockError


@dataclass(slots=True)
class Failure:
    """Of one request. The first error counts: what follows it is a consequence."""

    error: PaddockError | None = None
    in_stream: bool = False
    """It came after the status had been sent."""

    def note(self, error: PaddockError, *, in_stream: bool) -> None:
        if self.error is None:
            self.error, self.in_stream = error, in_stream

    @property
    def level(self) -> str:
        """Of the request's line: `error` for an answer that the server broke off, although its status was 200."""
        if self.error is None:
            return "info"
        if self.error.status >= 500:
            return "error" if self.in_stream or self.error.status == 500 else "warning"
        return "warning" if self.in_stream else "info"


FAILURE: Final[ContextVar[Failure | None]] = ContextVar("paddock.failure", default=None)
"""Of the request that is being answered. Set by the outermost layer; tasks that it starts share the object."""


def note_failure(error: PaddockError, *, in_stream: bool) -> None:
    if (failure := FAILURE.get()) is not None:
        failure.note(error, in_stream=in_stream)
