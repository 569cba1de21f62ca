"""The worker's own lines for the log. The gateway reads them from its output and adds the model's name."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import msgspec


def log_error(message: str, **fields: Any) -> None:
    """In an `except` block, with what led there."""
    log_failure(message, sys.exception(), **fields)


def log_warning(message: str, **fields: Any) -> None:
    _write(4, message, fields)


def log_failure(message: str, error: BaseException | None, **fields: Any) -> None:
    """With what led to this error."""
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    _write(3, message, {**fields, "traceback": trace})


def _write(level: int, message: str, fields: dict[str, Any]) -> None:
    sys.stderr.write(f"<{level}>{message}\t{msgspec.json.encode(fields).decode()}\n")
    sys.stderr.flush()
