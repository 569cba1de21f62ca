"""Tools, earlier calls and late system messages in a form that the chat template accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from paddock.text.chat_template import text_of
from paddock.text.reply.format import Format
from paddock.text.reply.formats import PLAIN

_EXPLANATION = """You can call these functions, given as JSON schemas:
{functions}
To call one, reply with nothing but a JSON object: {{"name": "function name", "arguments": {{…}}}}
To call several, write one such object on each line. The results will be given to you."""


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
        following = takewhile(lambda message: message["role"] == "tool", messages[at + 1 :])
        answers = [message for message in following if message.get("tool_call_id") in ids]
        results = {message["tool_call_id"]: message for message in reversed(answers)}  # the first result counts
        for index, call in enumerate(calls):
            first = message if index == 0 else {"role": message["role"], "content": ""}
            yield {**first, "tool_calls": [call]}
            if call["id"] in results:
                yield results[call["id"]]


def system_to_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move system messages that come after the first turn into the turns beside them, marked as coding agents mark
    such text. The text joins the turn before it, or else the user's turn after it: some templates require
    alternating roles. Nothing before the text changes, so a cached prefix stays valid.
    """
    turns: list[dict[str, Any]] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system" and any(turn["role"] != "system" for turn in turns):
            text = f"<system-reminder>\n{text_of(message.get('content'))}\n</system-reminder>"
            if turns[-1]["role"] in ("user", "tool") and not pending:
                turns[-1] = {**turns[-1], "content": _joined(turns[-1].get("content"), text)}
            else:
                pending.append(text)
            continue
        if pending and message["role"] == "user":
            message = {**message, "content": _joined(*pending, message.get("content"))}
        elif pending:
            turns.append({"role": "user", "content": _joined(*pending)})
        pending = []
        turns.append(message)
    return [*turns, {"role": "user", "content": _joined(*pending)}] if pending else turns


def _joined(*contents: Any) -> Any:
    """Contents one after another: a string, or a list of parts if one of them is a list."""
    given = [content for content in contents if content]
    if all(isinstance(content, str) for content in given):
        return "\n\n".join(given)
    parts = [content if isinstance(content, list) else [{"type": "text", "text": content}] for content in given]
    return [part for some in parts for part in some]


def calls_to_content(message: dict[str, Any], format: Format) -> dict[str, Any]:
    """Move the calls of a message to its content, as the model would have written them."""
    if not message.get("tool_calls"):
        return message
    text = format.write([call["function"] for call in message["tool_calls"]])
    content = message["content"] + format.begin + format.opening + text + format.end
    return {**message, "content": content, "tool_calls": []}


# ── templates that do not support tools ──────────────────────────────────────────────────────────────────────────────


def with_explanation(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, role: str
) -> list[dict[str, Any]]:
    """Add an explanation of the tools to the first message of this role."""
    if not tools:
        return list(messages)
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _EXPLANATION.format(functions=functions)
    at = next((at for at, message in enumerate(messages) if message["role"] == role), None)
    if at is None:
        return [{"role": role, "content": text}, *messages]
    first = {**messages[at], "content": f"{text}\n\n{messages[at]['content']}".rstrip()}
    return [*messages[:at], first, *messages[at + 1 :]]


def calls_to_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write earlier calls and their results as content. The content of each message must be a string."""
    names: dict[str, str] = {}
    texts: list[dict[str, Any]] = []
    last = ""
    for message in messages:
        calls = message.get("tool_calls") or ()
        names |= {call["id"]: call["function"]["name"] for call in calls}
        if calls:
            lines = [message["content"], PLAIN.write([call["function"] for call in calls])]
            texts.append({"role": "assistant", "content": "\n".join(filter(None, lines))})
        elif message["role"] == "tool":
            name = names.get(message.get("tool_call_id", ""), message.get("name", "the function"))
            result = f"The result of {name}:\n{message['content']}"
            if last == "tool":  # some templates require alternating roles
                result = f"{texts.pop()['content']}\n\n{result}"
            texts.append({"role": "user", "content": result})
        else:
            texts.append(message)
        last = message["role"]
    return texts
