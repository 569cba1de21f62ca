"""Log lines of a worker, written to stderr. The gateway reads them and adds the name of the model."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import msgspec


def log_error(message: str, **fields: Any) -> None:
    """Log the exception that is being handled."""
    log_failure(message, sys.exception(), **fields)


def log_warning(message: str, **fields: Any) -> None:
    _write(4, message, fields)


def log_failure(message: str, error: BaseException | None, **fields: Any) -> None:
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    _write(3, message, {**fields, "traceback": trace})


def _write(level: int, message: str, fields: dict[str, Any]) -> None:
    sys.stderr.write(f"<{level}>{message}\t{msgspec.json.encode(fields).decode()}\n")
    sys.stderr.flush()
