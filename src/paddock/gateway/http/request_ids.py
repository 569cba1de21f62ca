"""What a request is called: in the response, in its errors and in the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from typing import Final

REQUEST_ID: Final[ContextVar[str]] = ContextVar("paddock.request_id", default="")
"""Of the request that is being answered. Set by the outermost layer, so that every error can tell it."""

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


def new_request_id() -> str:
    return f"req_{secrets.token_hex(8)}"


def request_id_from(presented: str | None) -> str:
    """The client's own, if it can stand in a log, else a new one."""
    return presented if presented and _SANE.fullmatch(presented) else new_request_id()
