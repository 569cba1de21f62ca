"""Where a character of a rendered prompt is in its conversation."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.text import Place, place_of, system_end
from paddock.types import MessagePlace

Contents = st.lists(st.text("abc user\n", max_size=40), min_size=1, max_size=6)


def _render(messages: list[dict[str, Any]], *, strips: bool = False) -> tuple[str, list[int]]:
    """The text of a template, and where the content of each message begins."""
    text, starts = "", []
    for message in messages:
        text += f"<|start|>{message['role']}\n"
        starts.append(len(text))
        text += message["content"].strip() if strips else message["content"]
        text += "<|end|>\n"
    return f"{text}<|start|>assistant\n", starts


def _messages(*contents: str) -> list[dict[str, Any]]:
    roles = ["system", *("user", "assistant") * len(contents)]
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def test_a_character_of_a_message() -> None:
    messages = _messages("You are a helpful assistant.", "What is a radix tree?")
    text, starts = _render(messages)
    assert place_of(text, messages, [], starts[0] + 10) == Place(MessagePlace(0, "system", 10))
    assert place_of(text, messages, [], starts[1]) == Place(MessagePlace(1, "user", 0))
    assert place_of(text, messages, [], starts[1] + 20) == Place(MessagePlace(1, "user", 20))


def test_the_end_of_the_system_messages() -> None:
    messages = _messages("You are a helpful assistant.", "You are a helpful assistant.")
    text, starts = _render(messages)
    assert system_end(text, messages) == starts[0] + len(messages[0]["content"])
    developer = [{"role": "developer", "content": "Use plain technical English."}]
    text, starts = _render([messages[0], *developer, messages[1]])
    assert system_end(text, [messages[0], *developer, messages[1]]) == starts[1] + len(developer[0]["content"])
    assert system_end(text, messages[1:]) == 0, "the first message is not a system message"
    assert system_end(text, [{"role": "system", "content": "not in the text"}]) == 0


def test_a_template_that_strips_contents() -> None:
    messages = _messages("  You are a helpful assistant.\n")
    text, starts = _render(messages, strips=True)
    assert place_of(text, messages, [], starts[0]) == Place(MessagePlace(0, "system", 2))


def test_a_header_belongs_to_the_message_after_it() -> None:
    messages = _messages("You are a helpful assistant.", "What is a radix tree?")
    text, starts = _render(messages)
    assert place_of(text, messages, [], starts[1] - 3) == Place(MessagePlace(1, "user", None))


def test_what_follows_the_last_message_belongs_to_none() -> None:
    messages = _messages("You are a helpful assistant.")
    text, _ = _render(messages)
    assert place_of(text, messages, [], len(text) - 2) == Place()


def test_tool_definitions_and_calls() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "assistant", "content": "I look at the file now.", "tool_calls": [{}]},
        {"role": "tool", "content": "The file is empty, as it seems."},
    ]
    text = (
        'You are a helpful assistant.\n# Tools\n{"name": "read_file", "about": "x"}\n{"name": "write", "about": "y"}\n'
        'I look at the file now.<call>{"path": "a"}</call>The file is empty, as it seems.'
    )
    tools = ["read_file", "write"]
    assert place_of(text, messages, tools, text.index('"x"')) == Place(tool="read_file")
    assert place_of(text, messages, tools, text.index('"y"')) == Place(tool="write")
    assert place_of(text, messages, tools, text.index("# Tools")) == Place(tool="read_file")
    in_calls = place_of(text, messages, tools, text.index('"path"'))
    assert in_calls == Place(MessagePlace(1, "assistant", None), is_in_calls=True)


@given(Contents, st.booleans(), st.data())
def test_every_place_is_valid(contents: list[str], strips: bool, data: st.DataObject) -> None:
    messages = _messages(*contents)
    text, _ = _render(messages, strips=strips)
    position = data.draw(st.integers(0, len(text)))
    message = place_of(text, messages, ["a"], position).message
    if message is not None:
        assert message.role == messages[message.index]["role"]
        if message.character is not None:
            assert 0 <= message.character <= len(contents[message.index])


@given(st.lists(st.uuids().map(str), min_size=1, max_size=6), st.data())
def test_distinct_contents_are_found_exactly(contents: list[str], data: st.DataObject) -> None:
    messages = _messages(*contents)
    text, starts = _render(messages)
    index = data.draw(st.integers(0, len(contents) - 1))
    inside = data.draw(st.integers(0, len(contents[index]) - 1))
    if len(set(contents)) == len(contents):
        found = place_of(text, messages, [], starts[index] + inside).message
        assert found == MessagePlace(index, messages[index]["role"], inside)
