"""Parses a worker's output: a line starts with its level, `<4>`, as in sd-daemon(3). Without one it is debug output."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_LINE = re.compile(r"<([0-7])>(.*)", re.DOTALL)
_LEVELS = ("critical", "critical", "critical", "error", "warning", "info", "info", "debug")


def parse_line(line: str) -> tuple[str, str, dict[str, Any]]:
    """Level, message and fields; the fields are a JSON object after a tab."""
    match = _LINE.fullmatch(line)
    if match is None:
        return "debug", line, {}
    message, _, more = match[2].partition("\t")
    try:
        fields = msgspec.json.decode(more, type=dict[str, Any]) if more else {}
    except msgspec.DecodeError:
        message, fields = match[2], {}
    return _LEVELS[int(match[1])], message, fields
