"""Values that llama-server takes and this server refuses, repaired as llama-server does (`--lenient`). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

_BOUNDS: Final = ("ge", "le", "gt", "lt")
CLAMPED: Final = frozenset(
    {
        *("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "top_n_sigma"),
        *("repeat_penalty", "presence_penalty", "frequency_penalty", "dynatemp_range", "dynatemp_exponent"),
        *("dry_multiplier", "dry_base", "mirostat_tau", "mirostat_eta", "n_probs", "id_slot", "t_max_predict_ms"),
        *("thinking_budget_tokens", "reasoning_budget_tokens", "reasoning_budget"),
    }
)
"""A number out of range becomes the nearest one. llama-server does the same, or takes any number."""
IGNORED: Final = frozenset(
    {
        *("stop", "grammar", "samplers", "logit_bias", "lora", "response_fields", "response_format", "stream_options"),
        *("tool_choice", "parallel_tool_calls", "chat_template_kwargs", "add_generation_prompt", "logprobs", "system"),
        *("continue_final_message", "add_special", "parse_special", "with_pieces", "encoding_format", "user"),
    }
)
"""A value of another type or shape is ignored. Other fields are refused by llama-server too."""
_MOST_MIROSTAT: Final = 2
_NUMBERS: Final = ("int_type", "int_from_float", "float_type")
"""Problems that a value of another numeric type has."""
_RENAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "n_predict": ("max_tokens", "max_output_tokens"),
    "max_completion_tokens": ("n_predict",),
    "n_cmpl": ("n",),
    "n": ("n_cmpl",),
    "logprobs": ("n_probs",),
}
"""llama-server's endpoints share their parameters: a name that an endpoint does not know, and its own names for it."""


def rename(content: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Replace names that this endpoint does not know by its own."""
    for name, others in _RENAMED.items():
        own = next((other for other in others if other in fields), None)
        if name in content and name not in fields and own is not None:
            value = content.pop(name)
            content.setdefault(own, value)


def repair(
    content: dict[str, Any], problems: list[Any], remove: Callable[[dict[str, Any], tuple[Any, ...]], str]
) -> tuple[list[str], list[Any]]:
    """Change the body so that these problems disappear. Returns the names of the changed fields, and the problems that
    remain. `remove` removes the field at a place.
    """
    changed: list[str] = []
    left: list[Any] = []
    for problem in problems:
        place = problem["loc"]
        if problem["type"] == "extra_forbidden":
            changed.append(remove(content, place))
        elif place and place[0] in content and _repair_field(content, place[0], problem):
            changed.append(place[0])
        elif place and place[0] in changed:
            pass  # another problem of the same field
        else:
            left.append(problem)
    return changed, left


def _repair_field(content: dict[str, Any], name: str, problem: Any) -> bool:
    value = content[name]
    bound = next((problem["ctx"][key] for key in _BOUNDS if key in problem.get("ctx", {})), None)
    if problem["type"] in _NUMBERS and isinstance(value, bool | float) and math.isfinite(value):
        content[name] = int(value)
    elif name == "mirostat" and type(value) is int:
        content[name] = min(max(value, 0), _MOST_MIROSTAT)
    elif name in CLAMPED and bound is not None:
        content[name] = bound
    elif name in IGNORED and problem["type"] != "too_long":  # limits that protect the server remain
        del content[name]
    else:
        return False
    return True
