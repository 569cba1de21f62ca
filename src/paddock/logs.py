"""The log: text lines on stderr, or JSON objects on stdout, and a copy in a file."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import structlog

from paddock.log_writer import LogFile, LogWriter

_FLUSH_SECONDS = 1.0
_writer: LogWriter | None = None
_file: LogFile | None = None
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure(
    *,
    level: str,
    form: Literal["text", "json"],
    disabled: bool,
    file: Path | None = None,
    timestamps: bool = True,
    colors: Literal["on", "off", "auto"] = "auto",
) -> None:
    """Configure structlog once, at start-up. Python's own logging and uncaught exceptions are forwarded to it.

    Raises `OSError` if the file cannot be opened.
    """
    logging.basicConfig(handlers=[logging.NullHandler() if disabled else _Forward()], level=level, force=True)
    logging.getLogger("httpcore").setLevel(logging.INFO)  # at DEBUG it logs every received chunk
    logging.captureWarnings(True)
    set_level(level)
    if disabled:
        structlog.configure(processors=[_drop])
        return
    sys.excepthook = _log_uncaught
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp")
    shared: list[structlog.typing.Processor] = [structlog.processors.add_log_level, *([stamp] if timestamps else [])]
    if form == "json":
        finish: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        coloured = colors == "on" or (colors == "auto" and sys.stderr.isatty())
        finish = [
            _one_line,
            structlog.dev.ConsoleRenderer(colors=coloured, exception_formatter=plain, pad_event_to=24),
        ]
    processors = [*shared, *finish]

    def report_dropped(count: int) -> bytes:
        event: Any = {"event": "log lines were dropped because the log was not read", "dropped": count}
        for processor in processors:
            event = processor(None, "warning", event)
        return _encoded(event)

    global _writer, _file  # like the configuration of structlog
    flush()
    _writer = LogWriter(_descriptor(form), report_dropped)
    _file = LogFile(file, report_dropped) if file is not None else None
    structlog.configure(
        processors=[_threshold, *processors],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG
        ),  # `_threshold` filters, because it can change
        logger_factory=_Lines(_writer, _file),
        cache_logger_on_first_use=True,
    )


def flush() -> None:
    """Wait, at most one second, until all lines are written."""
    for writer in (_writer, _file):
        if writer is not None:
            writer.flush(_FLUSH_SECONDS)


def reopen() -> None:
    """Open the log file again, since it may have been renamed."""
    if _file is not None:
        try:
            _file.reopen()
        except OSError as error:
            structlog.get_logger(__name__).error("cannot open the log file again", reason=error.strerror)


def set_level(level: str) -> None:
    """Drop lines below this level from now on."""
    _threshold.level = logging.getLevelName(level)
    logging.getLogger().setLevel(level)


class _Threshold:
    """Drops events below the level. Loggers are cached, so they cannot hold the level themselves."""

    level = logging.INFO

    def __call__(self, _logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if structlog.processors.NAME_TO_LEVEL.get(name, logging.ERROR) < self.level:
            raise structlog.DropEvent
        return event


_threshold = _Threshold()


def dropped_lines() -> int:
    """The number of lines that were dropped because the log was not read."""
    return _writer.dropped if _writer is not None else 0


def _descriptor(form: Literal["text", "json"]) -> int:
    """The descriptor of stdout or stderr, also if it was replaced by an object without a descriptor."""
    try:
        return (sys.stdout if form == "json" else sys.stderr).fileno()
    except (AttributeError, OSError, ValueError):
        return 1 if form == "json" else 2


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"


class _Lines:
    """The logger that writes, and the factory that returns it."""

    def __init__(self, writer: LogWriter, file: LogFile | None) -> None:
        self._writer = writer
        self._file = file

    def __call__(self, *_: Any) -> _Lines:
        return self

    def msg(self, line: str) -> None:
        encoded = _encoded(line)
        self._writer.write(encoded)
        if self._file is not None:
            self._file.write(_COLOUR.sub(b"", encoded))

    debug = info = warning = error = critical = exception = msg


class _Forward(logging.Handler):
    """Forwards the logs of libraries. Routine messages of uvicorn and httpx at INFO become DEBUG."""

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
    """Escape control characters, so that a request cannot forge log lines."""
    return {key: _UNPRINTABLE.sub(_escaped, value) if isinstance(value, str) else value for key, value in event.items()}


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def _drop(_logger: object, _name: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
