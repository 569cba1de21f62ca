"""The id and the error of the current request, for its response and its line in the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import structlog

from paddock.errors import PaddockError

REQUEST_ID: Final[ContextVar[str]] = ContextVar("paddock.request_id", default="")
"""The id of the current request. The outermost layer sets it."""

_log = structlog.get_logger(__name__)
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


def new_request_id() -> str:
    return f"req_{secrets.token_hex(8)}"


def log_refusal(error: PaddockError) -> None:
    """Log a request that is refused before the application sees it, under a new id."""
    REQUEST_ID.set(id := new_request_id())
    _log.info("refused", status=error.status, reason=error.message, request_id=id)


def request_id_from(presented: str | None) -> str:
    """The client's id if it is safe to log, otherwise a new one."""
    return presented if presented and _SAFE.fullmatch(presented) else new_request_id()


@dataclass(slots=True)
class Failure:
    """The first error of one request. Later errors are consequences of it."""

    error: PaddockError | None = None
    in_stream: bool = False
    """Whether the status had been sent before."""

    @property
    def level(self) -> str:
        """The log level: `error` for a server error in a stream, although its status was 200."""
        if self.error is None:
            return "info"
        if self.error.status >= 500:
            return "error" if self.in_stream or self.error.status == 500 else "warning"
        return "warning" if self.in_stream else "info"


FAILURE: Final[ContextVar[Failure | None]] = ContextVar("paddock.failure", default=None)
"""The failure of the current request. The outermost layer sets it; tasks that it starts share the object."""


def note_failure(error: PaddockError, *, in_stream: bool) -> None:
    failure = FAILURE.get()
    if failure is not None and failure.error is None:
        failure.error, failure.in_stream = error, in_stream
