"""A call that a model writes without the markers of its format: a reply that is one JSON object and nothing else.

`{"name": "add", "arguments": {…}}`, also within a ```json fence. It is a call if it names a given function and its
arguments fit that function's schema. Anything else is content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from paddock.text.reply.fitting import fits
from paddock.text.reply.reader import Malformed, dumps, loads
from paddock.types import Tool

LONGEST = 8_192
"""Characters of a reply that are held back while it may be such a call."""
_LONGEST_HEAD = 512
_FENCES = ("", "```json", "```")
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*(?:```)?", re.DOTALL)
_DECODER = json.JSONDecoder()
_SPACES = re.compile(r"\s+")


def whole_call(text: str, tools: Mapping[str, Tool]) -> tuple[str, str] | None:
    """The function's name and the JSON of its arguments, where a whole reply is such a call."""
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        found = loads(fenced[1] if fenced is not None else text)
        return _call(found, tools)
    except Malformed:
        return None


def _call(found: Any, tools: Mapping[str, Tool]) -> tuple[str, str] | None:
    if not isinstance(found, dict) or len(found) != 2 or not isinstance(name := found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if name not in tools or not isinstance(arguments, dict) or not fits(arguments, tools[name].parameters):
        return None
    return name, dumps(arguments)


class BareCall:
    """Looks at a reply as it grows."""

    def __init__(self, tools: Mapping[str, Tool], *, only_fenced: bool = False) -> None:
        self._tools = tools
        fences = _FENCES[1:] if only_fenced else _FENCES
        self._heads = [f'{fence}{{"name":"{name}"' for fence in fences for name in tools]

    def look(self, text: str, *, ended: bool) -> tuple[str, str] | Literal["wait", "no"]:
        """The call, or whether to wait for more text. `text` is the whole reply so far."""
        text = text.lstrip()
        if ended:
            return whole_call(text, self._tools) or "no"
        if len(text) > LONGEST or not self._may_begin_one(text) or self._goes_on_after(text):
            return "no"
        return "wait"

    def _may_begin_one(self, text: str) -> bool:
        head = _SPACES.sub("", text[:_LONGEST_HEAD])
        return any(known.startswith(head) or head.startswith(known) for known in self._heads)

    def _goes_on_after(self, text: str) -> bool:
        """Whether the object has ended and something follows that is not the fence."""
        if "}" not in text:
            return False
        try:
            _, end = _DECODER.raw_decode(text, text.find("{"))
        except (ValueError, RecursionError):
            return False
        fence = "```" if text.startswith("```") else ""
        return not fence.startswith(text[end:].strip())
