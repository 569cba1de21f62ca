"""Earlier calls, for templates that do not write them as they are given."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from paddock.text.reply.shapes import Calls, ObjectCalls, PythonCalls


def one_call_each(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages with several calls as several messages, each followed by the result of its call."""
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
        for place, call in enumerate(calls):
            first = message if place == 0 else {"role": message["role"], "content": ""}
            yield {**first, "tool_calls": [call]}
            if call["id"] in results:
                yield results[call["id"]]


def with_calls_in_content(message: dict[str, Any], calls: Calls) -> dict[str, Any]:
    """A message, its content a text, with its calls written out as the model would have written them."""
    made = message.get("tool_calls")
    if not made:
        return message
    text = calls.begin + calls.opening + _written(calls, [call["function"] for call in made]) + calls.end
    return {**message, "content": message["content"] + text, "tool_calls": []}


def _written(calls: Calls, made: Sequence[dict[str, Any]]) -> str:
    match calls:
        case PythonCalls():
            return "[" + ", ".join(f"{call['name']}({_keywords(call['arguments'])})" for call in made) + "]"
        case ObjectCalls(array=True, keyed=False):
            keys = (calls.name_key, calls.arguments_key)
            return _json([dict(zip(keys, (call["name"], call["arguments"]), strict=True)) for call in made])
        case _:
            return "\n".join(_json({"name": call["name"], "arguments": call["arguments"]}) for call in made)


def _keywords(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
