"""What a worker writes to its output, understood: `<4>` and a line, as sd-daemon(3) has levels, is a line of that
level; what libraries print without one is detail, until the worker dies of it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_LINE = re.compile(r"<([0-7])>(.*)", re.DOTALL)
_LEVELS = ("critical", "critical", "critical", "error", "warning", "info", "info", "debug")


def understand(line: str) -> tuple[str, str, dict[str, Any]]:
    """A line as level, message and what else it tells, which is an object after a tab."""
    match = _LINE.fullmatch(line)
    if match is None:
        return "debug", line, {}
    message, _, more = match[2].partition("\t")
    try:
        fields = msgspec.json.decode(more, type=dict[str, Any]) if more else {}
    except msgspec.DecodeError:
        message, fields = match[2], {}
    return _LEVELS[int(match[1])], message, fields
