"""What a template writes of an earlier reply is what the model will write: our parser reads out of it what went in.

Over short templates that are here, and over those of many model families where a folder of them is at hand.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paddock.text import Chat, Format, ReplyParser
from paddock.types import ChatPrompt, Tool

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A city."},
            "days": {"type": "integer", "description": "How many."},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Any."},
            "hourly": {"type": "boolean", "description": "Each hour."},
            "place": {"$ref": "#/$defs/place", "description": "A place."},
        },
        "required": ["city"],
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "name": {"type": "string"}},
            }
        },
    },
    "Tells the weather.",
)
CLOCK = Tool("clock", {"type": "object", "properties": {}}, "Tells the time.")
TOOLS = (WEATHER, CLOCK)
USER = {"role": "user", "content": "How?"}
ARGUMENTS = {
    "city": 'St. Gall\'s "west"\n{ö',
    "days": 3,
    "tags": ["a", "it's"],
    "hourly": True,
    "place": {"lat": 47.4, "name": "1"},
}
Call = tuple[str, dict[str, Any]]
ASK: Call = ("get_weather", ARGUMENTS)
TELL: Call = ("clock", {})
CASES: dict[str, tuple[str, str, list[Call]]] = {
    "a call": ("", "", [ASK]),
    "two calls": ("", "", [ASK, TELL]),
    "a call without arguments": ("", "", [TELL]),
    "a thought and a call": ("", "Hm, hm.", [ASK]),
    "words and a call": ("Wait.", "", [ASK]),
    "a thought and words": ("Yes.", "Hm, hm.", []),
    "words": ("Yes.", "", []),
}

_HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
_TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
SHORT = {
    "hermes": _HEAD
    + _THOUGHT
    + '{% for c in m.tool_calls %}\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}" + _TAIL,
    "tags": _HEAD + _THOUGHT + "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n"
    "</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}" + _TAIL,
    "tags with values as Python prints them": _HEAD
    + "{{ m.content }}{% for c in m.tool_calls %}<seed:tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n"
    "</seed:tool_call>{% endfor %}" + _TAIL,
    "tags in tags": "{% macro xml(v) %}{% if v is mapping %}{% for k, i in v.items() %}]<]minimax[>[<{{ k }}>"
    "{{ xml(i) }}]<]minimax[>[</{{ k }}>{% endfor %}{% elif v is string %}{{ v }}"
    "{% elif v is number %}{{ v | tojson }}{% else %}"
    "{% for i in v %}]<]minimax[>[<item>{{ xml(i) }}]<]minimax[>[</item>"
    "{% endfor %}{% endif %}{% endmacro %}"
    + _HEAD
    + "{{ m.content }}{% if m.tool_calls %}]<]minimax[>[<tool_call>\n{% for c in m.tool_calls %}"
    ']<]minimax[>[<invoke name="{{ c.function.name }}">{{ xml(c.function.arguments) }}]<]minimax[>[</invoke>\n'
    "{% endfor %}]<]minimax[>[</tool_call>{% endif %}" + _TAIL,
    "calls in Python": "List of tools: ["
    + _HEAD
    + "{{ m.content }}{% if m.tool_calls %}<|tool_call_start|>[{% for c in m.tool_calls %}{{ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}"
    "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]<|tool_call_end|>"
    "{% endif %}" + _TAIL,
    "calls that the template leaves out": "List of tools: [" + _HEAD + "{{ m.content }}" + _TAIL,
    "one call in a message": _HEAD
    + "{% if m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
    '{% endfor %}{# {"name": function name, "parameters" #}' + _TAIL,
    "channels": "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role != 'assistant' %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% else %}{% if m.reasoning_content %}<|start|>assistant"
    "<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>{% endif %}{% if m.content %}<|start|>assistant"
    "<|channel|>{{ 'commentary' if m.tool_calls else 'final' }}<|message|>{{ m.content }}{% if m.tool_calls %}<|end|>"
    "{% endif %}{% endif %}{% if m.tool_calls %}<|start|>assistant<|channel|>commentary to=functions."
    "{{ m.tool_calls[0].function.name }} <|constrain|>json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}"
    "<|call|>{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "words alone": "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
}
# Tokens that end an answer, or are no part of its text.
ENDS = [
    "<|im_end|>",
    "<|eot_id|>",
    "</s>",
    "<|eom_id|>",
    "<|eot|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<turn|>",
    "<seed:eos>",
    "</assistant>",
    "<｜hy_eos:opensource｜>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|assistant_end|>",
    "<|role_end|>",
    "<SPECIAL_12>",
    "<|end_of_text|>",
    "<|message_sep|>",
    "<|end_of_msg|>",
    "<sep>",
    "<|tool_response>",
    "<|user|>",
    "<|observation|>",
    "<|end|>",
    "<|return|>",
    "<|START_OF_TURN_TOKEN|>",
    "<end_of_sentence>",
    "<|calls|>",
    "assistant<|role_sep|>",
]
# Its last reply is all thought, unless the content itself ends that.
ALL_THOUGHT = "NVIDIA-Nemotron-Nano-v2"


@cache
def templates() -> dict[str, str]:
    models = os.environ.get("PADDOCK_TEST_MODELS")
    files = sorted((Path(models).parent / "templates").glob("*.jinja")) if models else []
    return SHORT | {file.stem: file.read_text("utf-8") for file in files}


def _reply(chat: Chat, message: dict[str, Any]) -> tuple[str, str]:
    """What the template wrote of the message, and what the prompt before it would have said of it already."""
    format = chat.format
    prompt = chat.render(ChatPrompt([USER], tools=TOOLS))
    before = chat.render(ChatPrompt([USER], tools=TOOLS, ending="none")).text
    full = chat.render(ChatPrompt([USER, message], tools=TOOLS, ending="none")).text
    head, lead = prompt.text, prompt.reply_prefix
    if not full.startswith(head) and format.reasoning is not None:
        opening, closing = format.reasoning.opening, format.reasoning.closing
        head = head.rstrip().removesuffix(closing).rstrip().removesuffix(opening)
        lead = lead if closing in full.removeprefix(head) and opening not in full.removeprefix(head) else ""
    if not full.startswith(head):  # something else stands before a generation
        head = full[: full.rindex(head.removeprefix(before))] + head.removeprefix(before)
    return before_end(full.removeprefix(head), format), lead


def before_end(text: str, format: Format) -> str:
    """What of it the model would have written."""
    markers = (
        *format.skipped_markers,
        *format.calls.markers,
        *([format.reasoning.closing] if format.reasoning else []),
    )
    ends = [text.find(end) for end in ENDS if end in text and not any(end in marker for marker in markers)]
    return text[: min(ends, default=len(text))]


def _parse(chat: Chat, text: str, lead: str) -> tuple[str, str, list[Call]]:
    parser = ReplyParser(chat.format, TOOLS, call_id=str, reply_prefix=lead)
    content = reasoning = ""
    calls: dict[int, tuple[str, str]] = {}
    for part in [*map(parser.feed, text), parser.finish()]:
        content += part.content
        reasoning += part.reasoning
        for call in part.calls:
            name, arguments = calls.get(call.index, (call.name, ""))
            calls[call.index] = (name, arguments + call.arguments)
    assert not parser.malformed, text
    return content.strip(), reasoning.strip(), [(name, json.loads(arguments)) for name, arguments in calls.values()]


@pytest.mark.parametrize("name", templates())
def test_what_a_template_writes_is_read_as_it_was_meant(name: str) -> None:
    chat = Chat(templates()[name], bos="<s>", eos="</s>")
    is_bare = not (chat.format.calls.begin or chat.format.calls.opening)
    for case, (content, reasoning, calls) in CASES.items():
        if (is_bare and case == "words and a call") or (name == ALL_THOUGHT and content):
            continue  # nothing tells such a call from an answer in JSON
        made = [
            {"id": f"call0000{at}", "type": "function", "function": {"name": function, "arguments": arguments}}
            for at, (function, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": made}
        text, lead = _reply(chat, {key: value for key, value in message.items() if value or key == "content"})
        said, thought, called = _parse(chat, text, lead)
        # A template may leave out thoughts, words before a call or a call after words, and have one call in a message.
        told = {said, thought}
        assert content not in text or content in told, (case, text)
        assert reasoning not in text or thought == (reasoning or thought), (case, text)
        assert not said or said == content, (case, text)
        assert called == calls[: len(called)], (case, text)
        assert len(called) == len([call for call in calls if call[0] in text]), (case, text)
        assert called or not calls or content, (case, text)
