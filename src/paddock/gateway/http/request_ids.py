"""Request ids: in the response, in errors and in the log."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from typing import Final

REQUEST_ID: Final[ContextVar[str]] = ContextVar("paddock.request_id", default="")
"""The id of the current request. The outermost layer sets it."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


def new_request_id() -> str:
    return f"req_{secrets.token_hex(8)}"


def request_id_from(presented: str | None) -> str:
    """The client's id if it is safe to log, otherwise a new one."""
    return presented if presented and _SAFE.fullmatch(presented) else new_request_id()
