"""Where a character of a rendered prompt is in the conversation: in which message, or in which tool definition.

A chat template is a program, so this is found by searching: the contents of the messages occur in the rendered text in
their order. What cannot be found for certain is not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from paddock.types import MessagePlace


@dataclass(frozen=True, slots=True)
class Place:
    message: MessagePlace | None = None
    tool: str | None = None
    is_in_calls: bool = False
    """In the tool calls of the message."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The content of a message in the rendered text."""

    index: int
    role: str
    start: int
    end: int
    offset: int = 0
    """Characters of the content before `start`, which the template has left out."""
    has_calls: bool = False
    is_certain: bool = True


def place_of(text: str, messages: Sequence[dict[str, Any]], tools: Sequence[str], position: int) -> Place:
    """The place of a character of the rendered `text`. `tools` are the names of the tools."""
    found = _contents(text, messages)
    for content in found:
        if content.start <= position < content.end:
            inside = content.offset + position - content.start if content.is_certain else None
            return Place(MessagePlace(content.index, content.role, inside))
    before = [content for content in found if content.end <= position]
    after = [content for content in found if content.start > position]
    start, end = before[-1].end if before else 0, after[0].start if after else len(text)
    if (tool := _tool_at(text, tools, position, start, end)) is not None:
        return Place(tool=tool)
    if before and before[-1].has_calls:
        return Place(MessagePlace(before[-1].index, before[-1].role, None), is_in_calls=True)
    if after:
        return Place(MessagePlace(after[0].index, after[0].role, None))
    if before and position == before[-1].end:
        last = before[-1]
        length = last.offset + last.end - last.start
        return Place(MessagePlace(last.index, last.role, length if last.is_certain else None))
    return Place()


def system_end(text: str, messages: Sequence[dict[str, Any]]) -> int:
    """Where the system messages at the beginning end in the rendered `text`. 0: there are none, or it is uncertain."""
    first = list(takewhile(lambda message: message.get("role") in _SYSTEM_ROLES, messages))
    found = _contents(text, first)
    return found[-1].end if found and found[-1].is_certain else 0


def _contents(text: str, messages: Sequence[dict[str, Any]]) -> list[_Found]:
    """The contents that are found, in order. After one that is not found, the next is searched from the same place."""
    found: list[_Found] = []
    at = 0
    for index, message in enumerate(messages):
        content, role = _text_of(message), str(message.get("role", ""))
        has_calls = bool(message.get("tool_calls"))
        stripped = content.strip()
        if not stripped:
            continue
        whole = text.find(content, at)
        start = whole if whole >= 0 else text.find(stripped, at)
        if start < 0:
            continue
        used = content if whole >= 0 else stripped
        offset = 0 if whole >= 0 else len(content) - len(content.lstrip())
        # A short content, such as `user`, may be a part of the template.
        is_certain = len(used) >= _CERTAIN or text.find(used, start + 1, start + _NEAR) < 0
        found.append(_Found(index, role, start, start + len(used), offset, has_calls, is_certain))
        at = start + len(used)
    return found


_SYSTEM_ROLES = ("system", "developer")
_CERTAIN = 24
"""A content of so many characters is not found anywhere else by accident."""
_NEAR = 200
"""A shorter one is uncertain if it occurs again so soon."""
_BEFORE_TOOL = 100
"""Characters of a tool definition before its name."""


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _tool_at(text: str, tools: Sequence[str], position: int, start: int, end: int) -> str | None:
    """The tool whose definition is at the position, if the text between `start` and `end` has definitions."""
    at = [(text.find(f'"{name}"', start, end), name) for name in tools]
    found = sorted((place, name) for place, name in at if place >= 0)
    if not found or position < found[0][0] - _BEFORE_TOOL:
        return None
    return max((one for one in found if one[0] <= position), default=found[0])[1]
