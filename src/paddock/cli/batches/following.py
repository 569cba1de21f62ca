"""Waits for the end of a batch, and shows how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from paddock.cli.batches.api import ENDED, BatchApi
from paddock.cli.chat.server import ServerUnreachable

_POLL_SECONDS = 0.5
_LINE_SECONDS = 15.0
"""Between two lines if the output is not a terminal."""
_RESTART_SECONDS = 60.0
"""How long a server may be away, because it is restarted."""
_BAR = 24


class Moment(NamedTuple):
    """What was done at a time, to measure the speed."""

    seconds: float
    lines: int
    tokens: int


def moment(batch: dict[str, Any], seconds: float) -> Moment:
    counts = batch["request_counts"]
    return Moment(seconds, counts["completed"] + counts["failed"], batch["usage"]["output_tokens"])


def progress(batch: dict[str, Any], began: Moment, now: Moment) -> str:
    """One line: how many are done, how fast it is, how long it will take."""
    counts = batch["request_counts"]
    total = counts["total"]
    if batch["status"] != "in_progress" or not total:
        return str(batch["status"])
    filled = _BAR * now.lines // total
    parts = [f"[{'#' * filled}{'.' * (_BAR - filled)}] {now.lines:,} of {total:,}"]
    if counts["failed"]:
        parts.append(f"{counts['failed']:,} failed")
    seconds, lines = now.seconds - began.seconds, now.lines - began.lines
    if batch.get("waiting_for"):
        parts.append(f"waiting: {batch['waiting_for']}")
    elif seconds > 0 and lines:
        parts.append(f"{(now.tokens - began.tokens) / seconds:,.0f} tokens/s")
        parts.append(f"{_duration((total - now.lines) * seconds / lines)} left")
    return " · ".join(parts)


def follow(
    api: BatchApi,
    batch: dict[str, Any],
    *,
    out: TextIO = sys.stderr,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Returns the batch when it has ended. A server that is restarted meanwhile is waited for."""
    began: Moment | None = None
    lost_at: float | None = None
    shown_at, width, is_terminal = float("-inf"), 0, out.isatty()
    while batch["status"] not in ENDED:
        now = moment(batch, clock())
        if began is None and batch["status"] == "in_progress":
            began = now
        if is_terminal or now.seconds - shown_at >= _LINE_SECONDS:
            text = progress(batch, began or now, now)
            out.write(f"\r{text:<{width}}" if is_terminal else f"{text}\n")
            out.flush()
            shown_at, width = now.seconds, len(text)
        sleep(_POLL_SECONDS)
        try:
            batch, lost_at = api.batch(batch["id"]), None
        except ServerUnreachable:
            lost_at = clock() if lost_at is None else lost_at
            if clock() - lost_at > _RESTART_SECONDS:
                raise
    if is_terminal and width:
        out.write(f"\r{'':<{width}}\r")
    return batch


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
