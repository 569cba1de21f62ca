"""How the log looks: lines for people on stderr, JSON objects for machines on stdout."""

from __future__ import annotations

import logging
import re
import sys
from types import TracebackType
from typing import Any, Literal

import structlog

from paddock.log_writer import LogWriter

_MOMENT = 1.0
_writer: LogWriter | None = None
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure(*, level: str, form: Literal["text", "json"], disabled: bool) -> None:
    """Everything logs through structlog; this decides once, at start-up, what becomes of it. What libraries log by
    Python's own means, and what nobody caught, goes the same way.
    """
    logging.basicConfig(handlers=[logging.NullHandler() if disabled else _Forward()], level=level, force=True)
    logging.getLogger("httpcore").setLevel(logging.INFO)  # else it tells of every chunk that is received
    logging.captureWarnings(True)
    set_level(level)
    if disabled:
        structlog.configure(processors=[_drop])
        return
    sys.excepthook = _log_uncaught
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp")
    shared: list[structlog.typing.Processor] = [structlog.processors.add_log_level, stamp]
    if form == "json":
        finish: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        finish = [
            _one_line,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain, pad_event_to=24),
        ]
    processors = [*shared, *finish]

    def tell_dropped(count: int) -> bytes:
        event: Any = {"event": "log lines were dropped because nobody read them", "dropped": count}
        for processor in processors:
            event = processor(None, "warning", event)
        return _encoded(event)

    global _writer  # as the configuration of structlog is
    flush()
    _writer = LogWriter(_descriptor(form), tell_dropped)
    structlog.configure(
        processors=[_threshold, *processors],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # `_threshold` can change, this cannot
        logger_factory=_Lines(_writer),
        cache_logger_on_first_use=True,
    )


def flush() -> None:
    """Wait, for a moment at most, until what was logged is written."""
    if _writer is not None:
        _writer.flush(_MOMENT)


def set_level(level: str) -> None:
    """From now on leave out what is less important."""
    _threshold.level = logging.getLevelName(level)
    logging.getLogger().setLevel(level)


class _Threshold:
    """Drops what is below the level. Loggers are kept once made, so the level cannot be theirs."""

    level = logging.INFO

    def __call__(self, _logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if structlog.processors.NAME_TO_LEVEL.get(name, logging.ERROR) < self.level:
            raise structlog.DropEvent
        return event


_threshold = _Threshold()


def dropped_lines() -> int:
    """How many lines were not logged, because nobody read the log."""
    return _writer.dropped if _writer is not None else 0


def _descriptor(form: Literal["text", "json"]) -> int:
    """Where stdout or stderr goes, also where something without a descriptor has taken its place."""
    try:
        return (sys.stdout if form == "json" else sys.stderr).fileno()
    except (AttributeError, OSError, ValueError):
        return 1 if form == "json" else 2


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"


class _Lines:
    """Makes the one logger that writes."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def __call__(self, *_: Any) -> _Lines:
        return self

    def msg(self, line: str) -> None:
        self._writer.write(_encoded(line))

    debug = info = warning = error = critical = exception = msg


class _Forward(logging.Handler):
    """What libraries log. uvicorn and httpx tell at `INFO` what happens each time: for us that is detail."""

    def emit(self, record: logging.LogRecord) -> None:
        routine = record.levelno == logging.INFO and record.name.startswith(("uvicorn", "httpx"))
        level = logging.DEBUG if routine else record.levelno
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger(record.name).log(level, record.getMessage(), logger=record.name, exc_info=error)


def _log_uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, at)
    else:
        structlog.get_logger(__name__).critical("uncaught error", exc_info=error)


def _one_line(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Nobody can write a line of his own into the log by what he asks for."""
    return {key: _UNPRINTABLE.sub(_escaped, value) if isinstance(value, str) else value for key, value in event.items()}


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def _drop(_logger: object, _name: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
