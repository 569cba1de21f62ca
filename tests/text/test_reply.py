"""Parses reasoning and tool calls in every format, for any split of the text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.text import ReplyParser
from paddock.text.reply.formats import PLAIN, detect_format
from paddock.types import CallDelta, Tool
from tests.text.reply_samples import SAMPLES, TOOLS, Sample


@dataclass
class Result:
    content: str
    reasoning: str
    calls: dict[int, CallDelta]
    malformed: bool
    announced: list[int]

    @property
    def made(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.calls.values()]


def read(template: str, pieces: list[str], reply_prefix: str = "", tools: list[Tool] = TOOLS, **options: Any) -> Result:
    parser = ReplyParser(
        detect_format(template), tools, call_id=lambda index: f"id{index}", reply_prefix=reply_prefix, **options
    )
    result = Result("", "", {}, False, [])
    for part in [*map(parser.feed, pieces), parser.finish()]:
        result.content += part.content
        result.reasoning += part.reasoning
        for call in part.calls:
            if call.name:
                assert call.id == f"id{call.index}"
                result.announced.append(call.index)
                result.calls[call.index] = call
            elif call.withdrawn:
                del result.calls[call.index]
            else:
                before = result.calls[call.index]
                result.calls[call.index] = CallDelta(
                    call.index, before.id, before.name, before.arguments + call.arguments
                )
    result.malformed = parser.malformed
    return result


def cut(text: str, cuts: list[int]) -> list[str]:
    marks = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(marks)]


def check(sample: Sample, pieces: list[str]) -> None:
    result = read(sample.template, pieces, sample.reply_prefix)
    assert result.made == sample.calls
    assert (result.content, result.reasoning, result.malformed) == (sample.content, sample.reasoning, False)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_whole_and_by_character(name: str) -> None:
    check(SAMPLES[name], [SAMPLES[name].text])
    check(SAMPLES[name], list(SAMPLES[name].text))


@given(st.sampled_from(sorted(SAMPLES)), st.lists(st.integers(0, 1000), max_size=12))
def test_every_format_with_any_split(name: str, cuts: list[int]) -> None:
    check(SAMPLES[name], cut(SAMPLES[name].text, cuts))


_PIECES = sorted(
    {
        marker
        for sample in SAMPLES.values()
        for format in [detect_format(sample.template)]
        for marker in (format.begin, format.end, format.opening, format.closing, *format.call_markers)
        if marker
    }
    | {"<think>", "</think>", "[THINK]", "{", "}", "[", "]", '"', "\\", "get_weather", "clock", '{"name": "clock", '}
    | {'"arguments": ', "{}", '"\\ud800"', ":", ",", "city", " ", "\n", "é", "\x00", "1", "NaN", '"function": '}
)


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.sampled_from(_PIECES) | st.text(max_size=5), max_size=30),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_the_split_of_any_text_does_not_matter(name: str, words: list[str], cuts: list[int]) -> None:
    sample, text = SAMPLES[name], "".join(words)
    whole = read(sample.template, [text], sample.reply_prefix)
    pieces = read(sample.template, cut(text, cuts), sample.reply_prefix)
    assert whole == pieces
    for part in (whole.content, whole.reasoning, *(call.arguments for call in whole.calls.values())):
        part.encode("utf-8")
    assert all(isinstance(arguments, dict) for _, arguments in whole.made)
    assert len(set(whole.announced)) == len(whole.announced)


@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.sampled_from(_PIECES) | st.text(max_size=3), max_size=20),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_no_character_is_lost(name: str, words: list[str], cuts: list[int]) -> None:
    """A unique letter follows each piece. The parser returns each letter once and in order. Letters inside a valid call
    may be part of its syntax.
    """
    sample = SAMPLES[name]
    letters = [chr(0x4E00 + at) for at in range(len(words) + 1)]
    text = letters[0] + "".join(word + letter for word, letter in zip(words, letters[1:], strict=True))
    result = read(sample.template, cut(text, cuts), sample.reply_prefix)
    inside = "".join(call.arguments for call in result.calls.values())
    found = [[letter for letter in part if letter in letters] for part in (result.content, result.reasoning, inside)]
    assert all(part == sorted(part) for part in found)
    assert len({letter for part in found for letter in part}) == sum(map(len, found)), "none twice"
    if not result.calls:
        assert sorted(found[0] + found[1]) == letters
    elif not sample.reply_prefix:
        assert letters[0] == found[0][0], "text before a call is content"


@given(st.sampled_from(sorted(SAMPLES)), st.lists(st.integers(0, 10_000), max_size=3), st.integers(0, 10_000))
def test_a_call_with_a_missing_character_is_not_lost(name: str, cuts: list[int], missing: int) -> None:
    sample = SAMPLES[name]
    at = missing % len(sample.text)
    text = sample.text[:at] + sample.text[at + 1 :]
    result = read(sample.template, cut(text, cuts), sample.reply_prefix)
    if not result.calls and sample.calls:
        assert "get_weather" in result.content + result.reasoning or "get_weather" not in text
    assert all(isinstance(arguments, dict) for _, arguments in result.made)


@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 1000))
def test_a_truncated_call_is_content(name: str, size: int) -> None:
    sample = SAMPLES[name]
    text = sample.text[: size % len(sample.text)]
    result = read(sample.template, [text], sample.reply_prefix)
    assert result.made == sample.calls[: len(result.made)]
    left = len(result.content) + len(result.reasoning)
    assert left or result.made or not text.strip() or not result.malformed


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"]}\n</tool_call>',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {}} and so on\n</tool_call>',
        "<tool_call>\nclock()\n</tool_call>",
        "<tool_call>",
    ],
)
def test_an_invalid_call_is_content_and_marked_as_malformed(text: str) -> None:
    result = read("<tool_call>", list(f"Now: {text}"))
    assert (result.content, result.made, result.malformed) == (f"Now: {text}", [], True)


def test_a_valid_call_after_an_invalid_one() -> None:
    bad = '<tool_call>{"name": "clock", "arguments": {"a": 1 2}}</tool_call>'
    good = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    result = read("<tool_call>", list(bad + good))
    assert (result.content, result.made, result.malformed) == (bad, [("clock", {})], True)
    assert result.announced == [0, 1]


def test_json_that_names_no_function_is_content() -> None:
    text = '{"name": "Bella", "age": 4}'
    result = read("", list(text))
    assert (result.content, result.made, result.malformed) == (text, [], False)


def test_arguments_are_streamed() -> None:
    parser = ReplyParser(detect_format("<tool_call>"), TOOLS, call_id=str)
    parser.feed('<tool_call>{"name": "get_weather", "arguments": {"city": "Zü')
    assert parser.feed("rich").calls == [CallDelta(0, arguments="rich")]


def test_without_tools_calls_are_content() -> None:
    text = SAMPLES["hermes"].text
    result = read(SAMPLES["hermes"].template, [text], tools=[])
    assert "<tool_call>" in result.content
    assert not result.calls


def test_reasoning_stays_in_content_on_request() -> None:
    result = read("<think> </think>", ["<think>a</think>b"], split_reasoning=False)
    assert (result.content, result.reasoning) == ("<think>a</think>b", "")


def test_an_unknown_template_has_plain_calls() -> None:
    assert detect_format("{{ messages }}") == PLAIN
