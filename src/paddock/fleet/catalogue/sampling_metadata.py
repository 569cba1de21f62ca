"""The sampling defaults in a model's header (`general.sampling.*`), as request fields. llama-server uses the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paddock.types import SamplerName, sampler_named

_PREFIX = "general.sampling."
_INTEGERS = {"top_k": "top_k", "penalty_last_n": "repeat_last_n", "mirostat": "mirostat"}
_NUMBERS = {
    "temp": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_repeat": "repeat_penalty",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
_LIMITS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, float("inf")),
    "top_k": (0, float("inf")),
    **dict.fromkeys(("top_p", "min_p", "xtc_probability", "xtc_threshold"), (0.0, 1.0)),
}
"""libllama treats values beyond a limit like the limit."""
_INTEGER = re.compile(r"\s*([+-]?\d{1,9})")
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")


def sampling_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Request fields by name. As in llama-server a value may also be a text, and one that is no number is ignored."""
    found: dict[str, Any] = {}
    for key, field in _INTEGERS.items():
        if match := _INTEGER.match(_text(metadata.get(_PREFIX + key))):
            found[field] = int(match[1])
    for key, field in _NUMBERS.items():
        if match := _NUMBER.match(_text(metadata.get(_PREFIX + key))):
            found[field] = float(match[1])
    if sequence := _text(metadata.get(f"{_PREFIX}sequence")):
        found["samplers"] = [sampler for name in sequence.split(";") for sampler in _samplers(name)]
    return {field: _within(value, *_LIMITS[field]) if field in _LIMITS else value for field, value in found.items()}


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _samplers(name: str) -> list[SamplerName]:
    try:
        return [sampler_named(name)]
    except ValueError:
        return []


def _text(value: Any) -> str:
    """Libllama's text of a metadata value: floats have six digits after the point."""
    if value is None or isinstance(value, bool):
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)
