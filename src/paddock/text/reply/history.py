"""Earlier calls in a form that the chat template accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paddock.text.reply.shapes import Calls


def split_calls(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Split messages with several calls into one message per call, each followed by its result."""
    results: dict[str, dict[str, Any]] = {}
    for at, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            if results.pop(message.get("tool_call_id", ""), None) is None:
                yield message
            continue
        ids = {call["id"] for call in calls}
        results = {}
        for later in messages[at + 1 :]:
            if later["role"] != "tool":
                break
            if later.get("tool_call_id") in ids:
                results.setdefault(later["tool_call_id"], later)
        for index, call in enumerate(calls):
            first = message if index == 0 else {"role": message["role"], "content": ""}
            yield {**first, "tool_calls": [call]}
            if call["id"] in results:
                yield results[call["id"]]


def calls_to_content(message: dict[str, Any], calls: Calls) -> dict[str, Any]:
    """Move the calls of a message to its content, as the model would have written them."""
    if not message.get("tool_calls"):
        return message
    text = calls.write([call["function"] for call in message["tool_calls"]])
    content = message["content"] + calls.begin + calls.opening + text + calls.end
    return {**message, "content": content, "tool_calls": []}
