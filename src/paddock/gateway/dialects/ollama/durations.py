"""Durations and times as Go writes them, because Ollama does."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

FOREVER: Final = -1.0
"""The model stays loaded."""
_LONGEST: Final = float(2**63 // 10**9)
"""Seconds: Go counts nanoseconds in 64 bits."""
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]{1,19}\.?[0-9]{0,19}|\.[0-9]{1,19})(ns|us|µs|μs|ms|s|m|h)")
_LONGEST_TEXT: Final = 100


def keep_alive(value: Any) -> Any:
    """The seconds that `keep_alive` means: a number, or a text such as `1h30m`. A negative one means for ever. Raises
    `ValueError`.
    """
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError("it must be a number of seconds, or a duration such as '5m', '1h30m' or '-1'")
    return FOREVER if value < 0 else min(float(value), _LONGEST)


def _parsed(text: str) -> float:
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if len(text) <= _LONGEST_TEXT and re.fullmatch(r"[0-9]{1,19}(\.[0-9]{0,19})?", rest):
        return sign * float(rest)  # Go takes only "0" without a unit; programs send "-1" as a text too
    if not rest or len(text) > _LONGEST_TEXT or _PART.sub("", rest):
        raise ValueError(f"{text[:40]!r} is not a duration such as '5m', '1h30m' or '-1'")
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(rest))


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def now() -> str:
    return time_of(datetime.now(UTC).timestamp())


def time_of(seconds: float) -> str:
    """A Unix time as in Ollama's answers."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
