"""Detects a call without the markers of its format: a reply that is only one JSON object.

`{"name": "add", "arguments": {…}}`, also in a ```json fence, is a call if it names a given function and the arguments
match that function's schema. Anything else is content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal

from paddock.text.reply.reader import Malformed, dumps, loads
from paddock.text.reply.schemas import is_valid
from paddock.types import Tool

LONGEST = 8_192
"""The most characters that are held back while a reply may be such a call."""
_LONGEST_HEAD = 512
_FENCES = ("", "```json", "```")
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*(?:```)?", re.DOTALL)
_DECODER = json.JSONDecoder()
_SPACES = re.compile(r"\s+")


def whole_call(text: str, tools: Mapping[str, Tool]) -> tuple[str, str] | None:
    """The function's name and the JSON of its arguments, or None if the reply is no call."""
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        call = loads(fenced[1] if fenced is not None else text)
        if not isinstance(call, dict) or len(call) != 2:
            return None
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
            return None
        return (name, dumps(arguments)) if is_valid(arguments, tools[name].parameters) else None
    except Malformed:
        return None


class BareCall:
    """Decides while a reply arrives."""

    def __init__(self, tools: Mapping[str, Tool], *, only_fenced: bool = False) -> None:
        self._tools = tools
        fences = _FENCES[1:] if only_fenced else _FENCES
        self._heads = [f'{fence}{{"name":"{name}"' for fence in fences for name in tools]

    def look(self, text: str, *, ended: bool) -> tuple[str, str] | Literal["wait", "no"]:
        """The call, or whether more text may make `text` a call. `text` is the whole reply so far."""
        text = text.lstrip()
        if ended:
            return whole_call(text, self._tools) or "no"
        if len(text) > LONGEST or not self._may_start_call(text) or self._has_text_after(text):
            return "no"
        return "wait"

    def _may_start_call(self, text: str) -> bool:
        head = _SPACES.sub("", text[:_LONGEST_HEAD])
        return any(known.startswith(head) or head.startswith(known) for known in self._heads)

    def _has_text_after(self, text: str) -> bool:
        """Whether the object is complete and text other than the fence follows."""
        if "}" not in text:
            return False
        try:
            _, end = _DECODER.raw_decode(text, text.find("{"))
        except (ValueError, RecursionError):
            return False
        fence = "```" if text.startswith("```") else ""
        return not fence.startswith(text[end:].strip())
