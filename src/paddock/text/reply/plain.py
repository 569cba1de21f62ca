"""Tools for models whose template knows none: explained in words, and called by a reply that is JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_EXPLANATION = """You can call these functions, given as JSON schemas:
{functions}
To call one, reply with nothing but a JSON object: {{"name": "function name", "arguments": {{…}}}}
To call several, write one such object on each line. The results will be given to you."""


def explanation(tools: Sequence[dict[str, Any]]) -> str:
    """What the model is told of these tools."""
    return _EXPLANATION.format(functions="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))


def with_explanation(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, role: str
) -> list[dict[str, Any]]:
    """The messages with it at the beginning of the first system or user message."""
    if not tools:
        return list(messages)
    text = explanation(tools)
    at = next((at for at, message in enumerate(messages) if message["role"] == role), None)
    if at is None:
        return [{"role": role, "content": text}, *messages]
    first = {**messages[at], "content": f"{text}\n\n{messages[at]['content']}".rstrip()}
    return [*messages[:at], first, *messages[at + 1 :]]


def in_words(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Earlier calls and their results as a template understands them that knows only words. Contents are texts."""
    names: dict[str, str] = {}
    told: list[dict[str, Any]] = []
    last = ""
    for message in messages:
        calls = message.get("tool_calls") or ()
        names |= {call["id"]: call["function"]["name"] for call in calls}
        if calls:
            lines = [message["content"], *map(_call, calls)]
            told.append({"role": "assistant", "content": "\n".join(filter(None, lines))})
        elif message["role"] == "tool":
            name = names.get(message.get("tool_call_id", ""), message.get("name", "the function"))
            result = f"The result of {name}:\n{message['content']}"
            if last == "tool":  # some templates want roles to alternate
                result = f"{told.pop()['content']}\n\n{result}"
            told.append({"role": "user", "content": result})
        else:
            told.append(message)
        last = message["role"]
    return told


def _call(call: dict[str, Any]) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
