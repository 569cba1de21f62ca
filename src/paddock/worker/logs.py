"""The worker's own lines for the log. The gateway reads them from its output and adds the model's name."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import msgspec


def log_error(message: str, **fields: Any) -> None:
    """In an `except` block, with what led there."""
    log_failure(message, sys.exception(), **fields)


def log_failure(message: str, error: BaseException | None, **fields: Any) -> None:
    """With what led to this error."""
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    more = msgspec.json.encode({**fields, "traceback": trace}).decode()
    sys.stderr.write(f"<3>{message}\t{more}\n")
    sys.stderr.flush()
