"""The parser reads what chat templates write: a template shows how its model writes replies.

The tests use short templates, and those of many model families if `PADDOCK_TEST_MODELS` has a folder of them.
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
WEATHER_CALL: Call = ("get_weather", ARGUMENTS)
CLOCK_CALL: Call = ("clock", {})
CASES: dict[str, tuple[str, str, list[Call]]] = {
    "a call": ("", "", [WEATHER_CALL]),
    "two calls": ("", "", [WEATHER_CALL, CLOCK_CALL]),
    "a call without arguments": ("", "", [CLOCK_CALL]),
    "reasoning and a call": ("", "Hm, hm.", [WEATHER_CALL]),
    "content and a call": ("Wait.", "", [WEATHER_CALL]),
    "reasoning and content": ("Yes.", "Hm, hm.", []),
    "content": ("Yes.", "", []),
}

_HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
_TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_REASONING = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
SHORT = {
    "hermes": _HEAD
    + _REASONING
    + '{% for c in m.tool_calls %}\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}" + _TAIL,
    "tags": _HEAD + _REASONING + "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n"
    "</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}" + _TAIL,
    "tags with values as Python prints them": _HEAD
    + "{{ m.content }}{% for c in m.tool_calls %}<seed:tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n"
    "</seed:tool_call>{% endfor %}" + _TAIL,
    "nested tags": "{% macro xml(v) %}{% if v is mapping %}{% for k, i in v.items() %}]<]minimax[>[<{{ k }}>"
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
    "calls that the template omits": "List of tools: [" + _HEAD + "{{ m.content }}" + _TAIL,
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
    "no tools": "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
}
# Tokens that end a reply or are not part of its text.
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
# The template writes the last reply as reasoning, unless the content ends the reasoning.
ONLY_REASONING = "NVIDIA-Nemotron-Nano-v2"


@cache
def templates() -> dict[str, str]:
    models = os.environ.get("PADDOCK_TEST_MODELS")
    files = sorted((Path(models).parent / "templates").glob("*.jinja")) if models else []
    return SHORT | {file.stem: file.read_text("utf-8") for file in files}


def _reply(chat: Chat, message: dict[str, Any]) -> tuple[str, str]:
    """The reply as the template writes it, and its prefix in the prompt."""
    format = chat.format
    prompt = chat.render(ChatPrompt([USER], tools=TOOLS))
    before = chat.render(ChatPrompt([USER], tools=TOOLS, ending="none")).text
    full = chat.render(ChatPrompt([USER, message], tools=TOOLS, ending="none")).text
    head, prefix = prompt.text, prompt.reply_prefix
    if not full.startswith(head) and format.reasoning is not None:
        opening, closing = format.reasoning.opening, format.reasoning.closing
        head = head.rstrip().removesuffix(closing).rstrip().removesuffix(opening)
        prefix = prefix if closing in full.removeprefix(head) and opening not in full.removeprefix(head) else ""
    if not full.startswith(head):  # the generation prompt differs from the start of a message
        head = full[: full.rindex(head.removeprefix(before))] + head.removeprefix(before)
    return before_end(full.removeprefix(head), format), prefix


def before_end(text: str, format: Format) -> str:
    """The part that a model would write."""
    markers = (
        *format.skipped_markers,
        *format.call_markers,
        *([format.reasoning.closing] if format.reasoning else []),
    )
    ends = [text.find(end) for end in ENDS if end in text and not any(end in marker for marker in markers)]
    return text[: min(ends, default=len(text))]


def _parse(chat: Chat, text: str, prefix: str) -> tuple[str, str, list[Call]]:
    parser = ReplyParser(chat.format, TOOLS, call_id=str, reply_prefix=prefix)
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
def test_the_parser_reads_what_a_template_writes(name: str) -> None:
    chat = Chat(templates()[name], bos="<s>", eos="</s>")
    is_bare = chat.format.is_bare
    for case, (content, reasoning, calls) in CASES.items():
        if (is_bare and case == "content and a call") or (name == ONLY_REASONING and content):
            continue  # such a call looks like content in JSON
        made = [
            {"id": f"call0000{at}", "type": "function", "function": {"name": function, "arguments": arguments}}
            for at, (function, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": made}
        text, prefix = _reply(chat, {key: value for key, value in message.items() if value or key == "content"})
        read_content, read_reasoning, read_calls = _parse(chat, text, prefix)
        # A template may omit reasoning, content before a call or a call after content, and may write one call only.
        parts = {read_content, read_reasoning}
        assert content not in text or content in parts, (case, text)
        assert reasoning not in text or read_reasoning == (reasoning or read_reasoning), (case, text)
        assert not read_content or read_content == content, (case, text)
        assert read_calls == calls[: len(read_calls)], (case, text)
        assert len(read_calls) == len([call for call in calls if call[0] in text]), (case, text)
        assert read_calls or not calls or content, (case, text)
