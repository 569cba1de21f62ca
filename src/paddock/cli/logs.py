"""How the log looks: lines for people on stderr, JSON objects for machines on stdout."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(*, level: str, form: Literal["text", "json"], disabled: bool) -> None:
    """Everything logs through structlog; this decides once, at start-up, what becomes of it."""
    if disabled:
        structlog.configure(processors=[_drop])
        return
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp")
    shared: list[structlog.typing.Processor] = [structlog.processors.add_log_level, stamp]
    if form == "json":
        finish: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    else:
        plain = structlog.dev.plain_traceback
        finish = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain, pad_event_to=24)]
    structlog.configure(
        processors=[*shared, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout if form == "json" else sys.stderr),
        cache_logger_on_first_use=True,
    )


def _drop(_logger: object, _name: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
