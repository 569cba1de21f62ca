"""Renders conversations with tools, reasoning and partial replies with many kinds of templates."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest, TemplateRefused
from paddock.text import Chat
from paddock.text.reply.history import system_to_turns
from paddock.types import ChatPrompt, Tool

HELLO = [{"role": "user", "content": "hi"}]
TOOL = Tool(
    "get_weather",
    {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}, "required": ["city"]},
    "Tells the weather.",
)
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}
WITH_CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "How is the weather?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "call12345", "name": "get_weather"},
]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
WITH_OPTION = CHATML + "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
EMPTY_REASONING = CHATML.replace("assistant\n{% endif", "assistant\n<think></think>{% endif")
HERMES = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> Use <tool_call></tool_call>.\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ ARGUMENTS }}}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_arguments_are_objects_or_json_text_as_the_template_expects() -> None:
    for use in ("c.function.arguments | tojson", "c.function.arguments"):
        text = Chat(HERMES.replace("ARGUMENTS", use)).render(ChatPrompt(WITH_CALL, tools=(TOOL,))).text
        assert '"arguments": {"city": "Zürich"}}' in text


def test_tools_are_explained_if_the_template_does_not_support_them() -> None:
    text = Chat(CHATML).render(ChatPrompt(WITH_CALL, tools=(TOOL,))).text
    assert text.startswith("<|im_start|>system\nYou can call these functions")
    assert '{"name": "get_weather", "arguments": {"city": "Zürich"}}' in text
    assert "<|im_start|>user\nThe result of get_weather:\nsunny" in text


def test_text_parts_are_joined_if_tools_are_explained() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]}
    result = {**WITH_CALL[2], "content": [{"type": "text", "text": "sunny"}]}
    text = Chat(CHATML).render(ChatPrompt([system, WITH_CALL[0], WITH_CALL[1], result], tools=(TOOL,))).text
    assert "\n\nBe\nkind.<|im_end|>" in text
    assert "get_weather:\nsunny<|im_end|>" in text


def test_tools_are_explained_in_a_user_message_if_system_messages_are_refused() -> None:
    no_system = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    text = Chat(no_system).render(ChatPrompt(HELLO, tools=(TOOL,))).text
    assert text.startswith("<|im_start|>user\nYou can call these functions")


def test_call_ids_are_shortened_if_the_template_requires_it() -> None:
    source = HERMES.replace("ARGUMENTS", "c.function.arguments | tojson }}{{ c.id") + "{# id|length != 9 #}"
    long = [WITH_CALL[0], {"role": "assistant", "tool_calls": [{**CALL, "id": "call_0123456789abcdef"}]}]
    text = Chat(source).render(ChatPrompt(long, tools=(TOOL,))).text
    id = text.partition('"arguments": {"city": "Zürich"}')[2].partition("}")[0]
    assert len(id) == 9


@pytest.mark.parametrize(
    ("source", "thinking", "end", "reasoning"),
    [
        (CHATML, None, "assistant\n", "none"),
        (THINKING + "{# </think> #}", None, "assistant\n<think>\n", "started"),
        (THINKING + "{# </think> #}", False, "assistant\n<think>\n</think>\n\n", "none"),
        (WITH_OPTION, None, "assistant\n", "possible"),
        (WITH_OPTION, True, "assistant\n", "possible"),
        (WITH_OPTION, False, "assistant\n<think>\n\n</think>\n\n", "none"),
        (WITH_OPTION.replace("is false", "is not true"), True, "assistant\n", "possible"),
        (WITH_OPTION.replace("is false", "is not true"), None, "assistant\n", "possible"),
        (WITH_OPTION.replace("enable_thinking is false", "not thinking"), None, "\n<think>\n\n</think>\n\n", "none"),
        (EMPTY_REASONING, None, "assistant\n<think></think>", "none"),
        (EMPTY_REASONING, True, "assistant\n<think>\n", "started"),
        (CHATML + "{# thinking <think></think> #}", False, "assistant\n<think>\n\n</think>\n\n", "none"),
        (CHATML + "{# <think></think> #}", False, "assistant\n<think>\n\n</think>\n\n", "none"),
    ],
)
def test_thinking_can_be_turned_off(source: str, thinking: bool | None, end: str, reasoning: str) -> None:
    rendered = Chat(source).render(ChatPrompt(HELLO, thinking=thinking))
    assert rendered.text.endswith(end)
    assert rendered.reasoning == reasoning
    assert rendered.reply_prefix == ("<think>" if reasoning == "started" else "")


def test_reasoning_that_cannot_be_turned_off_is_an_error() -> None:
    harmony = "<|channel|>analysis {% if add_generation_prompt %}<|start|>assistant{% endif %}"
    assert Chat(harmony).render(ChatPrompt(HELLO)).reply_prefix == "<|start|>assistant"
    with pytest.raises(InvalidRequest, match="without reasoning"):
        Chat(harmony).render(ChatPrompt(HELLO, thinking=False))


@pytest.mark.parametrize(
    ("source", "message", "end"),
    [
        (CHATML, {"content": "The sky"}, "assistant\nThe sky"),
        (CHATML, {"content": [{"type": "text", "text": "The sky"}]}, "assistant\nThe sky"),
        (THINKING + "{# </think> #}", {"content": "The sky"}, "<think>\n</think>\n\nThe sky"),
        (THINKING + "{# </think> #}", {"content": "A", "reasoning_content": "B"}, "<think>\nB</think>\n\nA"),
        (THINKING + "{# </think> #}", {"reasoning_content": "B"}, "<think>\nB"),
        (WITH_OPTION, {"content": "A", "reasoning_content": "B"}, "assistant\n<think>B</think>\n\nA"),
    ],
)
def test_a_partial_reply_is_continued(source: str, message: dict[str, Any], end: str) -> None:
    prompt = ChatPrompt([*HELLO, {"role": "assistant", **message}], ending="continue")
    assert Chat(source).render(prompt).text.endswith(end)


def test_a_prompt_without_generation_prompt() -> None:
    assert Chat(CHATML).render(ChatPrompt(HELLO, ending="none")).text.endswith("hi<|im_end|>\n")


OTHER_CALL = {**CALL, "id": "call67890", "function": {"name": "get_weather", "arguments": {"city": "Bern"}}}
WITH_CALLS: list[dict[str, Any]] = [
    WITH_CALL[0],
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, OTHER_CALL]},
    {"role": "tool", "content": "rainy", "tool_call_id": "call67890"},
    WITH_CALL[2],
    {"role": "user", "content": "Thanks."},
]


@pytest.mark.parametrize(
    "limit", ["{{ raise_exception('one at a time') if m.get('tool_calls', []) | length > 1 }}", ""]
)
def test_calls_are_split_if_the_template_supports_one_per_message(limit: str) -> None:
    one = HERMES.replace("ARGUMENTS", "c.function.arguments | tojson").replace(
        "m.tool_calls or []", "(m.tool_calls or [])[:1]"
    )
    text = (
        Chat(one.replace("{{ m.content }}", "{{ m.content }}" + limit))
        .render(ChatPrompt(WITH_CALLS, tools=(TOOL,)))
        .text
    )
    places = [text.index(word) for word in ("see.<tool", "Zürich", "sunny", "Bern", "rainy", "Thanks.")]
    assert places == sorted(places)
    assert text.count("sunny") == text.count("rainy") == 1


@pytest.mark.parametrize(
    ("marker", "written"),
    [
        (
            "List of tools: [",
            '<|tool_call_start|>[get_weather(city="Zürich"), get_weather(city="Bern")]<|tool_call_end|>',
        ),
        (
            "<|tool_call|>",
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Zürich"}}, '
            '{"name": "get_weather", "arguments": {"city": "Bern"}}]',
        ),
    ],
)
def test_calls_that_a_template_omits_are_written_as_content(marker: str, written: str) -> None:
    chat = Chat(f"{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{CHATML}{{# {marker} #}}")
    assert f"Let me see.{written}<|im_end|>" in chat.render(ChatPrompt(WITH_CALLS, tools=(TOOL,))).text


def test_results_are_one_message_if_the_template_does_not_support_tools() -> None:
    text = Chat(CHATML).render(ChatPrompt(WITH_CALLS, tools=(TOOL,))).text
    assert "user\nThe result of get_weather:\nrainy\n\nThe result of get_weather:\nsunny<|im_end|>" in text


def test_reasoning_effort_none_is_not_passed_to_the_template() -> None:
    source = "{{ raise_exception('low or high') if reasoning_effort == 'none' }}" + CHATML
    prompt = ChatPrompt(HELLO, thinking=False, template_options={"reasoning_effort": "none"})
    assert Chat(source).render(prompt).text.endswith("assistant\n")


def test_templates_get_what_else_they_know() -> None:
    chat = Chat("{{ tone }} {{ messages[0].content }}")
    assert chat.render(ChatPrompt(HELLO, template_options={"tone": "kind"})).text == "kind hi"


def _templates() -> list[Path]:
    models = os.environ.get("PADDOCK_TEST_MODELS")
    return sorted((Path(models).parent / "templates").glob("*.jinja")) if models else []


def test_templates_of_many_model_families_render_tools() -> None:
    if not _templates():
        pytest.skip("no folder of chat templates beside PADDOCK_TEST_MODELS")
    refused = []
    for file in _templates():
        chat = Chat(file.read_text("utf-8"), bos="<s>", eos="</s>")
        for messages, tools in ((HELLO, ()), (HELLO, (TOOL,)), (WITH_CALL, (TOOL,))):
            for thinking in (None, True):
                try:
                    text = chat.render(ChatPrompt(messages, tools=tools, thinking=thinking)).text
                except TemplateRefused as error:
                    refused.append(f"{file.name}: {error.message}")
                    continue
                assert str(messages[0]["content"]) in text, file.name
                assert ("get_weather" in text) == bool(tools), file.name
                assert "sunny" in text or messages is HELLO, file.name
    assert not refused


LATE = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "How is the weather?"},
    {"role": "system", "content": "It is noon."},
    {"role": "assistant", "content": "Sunny."},
    {"role": "system", "content": "It is one."},
    {"role": "user", "content": "And now?"},
]
REMINDER = "<system-reminder>\n{}\n</system-reminder>"


@pytest.mark.parametrize(
    ("loop", "keeps"),
    [
        ("{{ m.role }}: {{ m.content }};", True),
        ("{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{{ m.content }};", False),
        ("{% if m.role != 'system' or loop.first %}{{ m.role }}: {{ m.content }};{% endif %}", False),
    ],
)
def test_system_messages_after_the_first_turn(loop: str, keeps: bool) -> None:
    """A template that refuses or drops them gets their text in the turns beside them."""
    text = Chat(f"{{% for m in messages %}}{loop}{{% endfor %}}").render(ChatPrompt(LATE)).text
    noon = "It is noon." if keeps else f"How is the weather?\n\n{REMINDER.format('It is noon.')};"
    one = "It is one." if keeps else f"{REMINDER.format('It is one.')}\n\nAnd now?;"
    assert noon in text and one in text
    assert ("<system-reminder>" in text) != keeps


def test_templates_of_many_model_families_keep_late_system_messages_in_place() -> None:
    if not _templates():
        pytest.skip("no folder of chat templates beside PADDOCK_TEST_MODELS")
    for file in _templates():
        chat = Chat(file.read_text("utf-8"), bos="<s>", eos="</s>")
        for messages in (LATE[1:], LATE[1:3], [*WITH_CALL, LATE[4]]):
            text = chat.render(ChatPrompt(messages, tools=(TOOL,))).text
            places = [text.find(str(message["content"])) for message in messages if message.get("content")]
            assert min(places) >= 0 and places == sorted(places), (file.name, text)


def _role_and_text(role: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda text: {"role": role, "content": text}, st.text("abc", min_size=1, max_size=3))


@given(st.lists(st.sampled_from(["system", "user", "assistant", "tool"]).flatmap(_role_and_text), max_size=8))
def test_moving_system_messages_loses_nothing(messages: list[dict[str, Any]]) -> None:
    moved = system_to_turns(messages)
    marks = re.compile(r"</?system-reminder>|\s")
    plain = "".join(message["content"] for message in messages)
    assert marks.sub("", "".join(message["content"] for message in moved)) == plain
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    assert moved[:first] == messages[:first]
    assert all(message["role"] != "system" for message in moved[first:])
    assert system_to_turns(moved) == moved


def test_templates_keep_the_reasoning_of_earlier_turns_unless_told_otherwise() -> None:
    names = ("preserve_thinking", "clear_thinking", "truncate_history_thinking", "drop_thinking")
    chat = Chat("{{ [" + ", ".join(names) + "] }}")

    def rendered(**options: Any) -> str:
        return chat.render(ChatPrompt([{"role": "user", "content": "hi"}], template_options=options)).text

    assert rendered() == rendered(preserve_reasoning=True) == "[True, False, False, False]"
    assert rendered(preserve_reasoning=False) == "[False, True, True, True]"
    assert rendered(clear_thinking=True) == "[True, True, False, False]", "its own options win"
