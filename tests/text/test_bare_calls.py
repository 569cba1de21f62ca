"""Calls without the markers of the model's format, and the validation of their arguments."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.text import ReplyParser
from paddock.text.reply.bare import LONGEST
from paddock.text.reply.formats import detect_format
from paddock.text.reply.schemas import is_valid
from paddock.types import Tool

ADD = Tool(
    "add",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
CALL = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def _read(
    pieces: list[str], template: str = "<tool_call>", **options: Any
) -> tuple[str, list[tuple[str, Any]], list[str]]:
    """Content, calls, and the pieces of content before the end."""
    parser = ReplyParser(detect_format(template), [ADD], call_id=str, **options)
    parsed = [parser.feed(piece) for piece in pieces]
    early = [one.content for one in parsed]
    parsed.append(parser.finish())
    deltas = [delta for one in parsed for delta in one.calls]
    calls = [
        (delta.name, json.loads("".join(d.arguments for d in deltas if d.index == delta.index)))
        for delta in deltas
        if delta.name
    ]
    return "".join(one.content for one in parsed), calls, early


@pytest.mark.parametrize(
    "reply",
    [
        CALL,
        f"\n{CALL}\n",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```\n",
        f"```json\n{CALL}",
        '{\n  "name": "add",\n  "arguments": {\n    "a": 1,\n    "b": 2\n  }\n}',
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
    ],
)
@pytest.mark.parametrize("template", ["<tool_call>", "[TOOL_CALLS]", "no format at all"])
def test_a_reply_that_is_one_call(reply: str, template: str) -> None:
    for pieces in ([reply], list(reply)):
        content, calls, _ = _read(pieces, template)
        assert calls == [("add", {"a": 1, "b": 2})]
        assert content.strip() == ""


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "subtract", "arguments": {"a": 1, "b": 2}}',
        '{"name": "add", "arguments": {"a": 1}}',
        '{"name": "add", "arguments": {"a": "1", "b": 2}}',
        '{"name": "add", "arguments": {"a": 1, "b": 2, "c": 3}}',
        '{"name": "add", "arguments": {"a": 1, "b": 2}, "why": "because"}',
        f"{CALL}\nThis adds two numbers.",
        f"{CALL}\n{CALL}",
        f"Here: {CALL}",
        f"```json\n{CALL}\n```\nThis is how it is called.",
        '{"name": "add", "arguments": {"a": 1,',
        "{}",
        "",
    ],
)
def test_anything_else_is_content(reply: str) -> None:
    for pieces in ([reply], list(reply)):
        content, calls, _ = _read(pieces)
        assert (content, calls) == (reply, [])


def test_a_call_after_reasoning() -> None:
    reply = f"<think>Hm.</think>\n{CALL}"
    _, calls, _ = _read(list(reply), "<tool_call> <think> </think>")
    assert calls == [("add", {"a": 1, "b": 2})]


def test_requested_json_content_is_no_call() -> None:
    content, calls, _ = _read([CALL], bare_calls=False)
    assert (content, calls) == (CALL, [])


def test_only_a_possible_call_is_held_back() -> None:
    _, _, early = _read(list('{"name": "Anna"}'))
    assert "".join(early[:12]) == '{"name": "An', "no function has this name"
    _, _, early = _read([f"{CALL} and", " more"])
    assert early[0] == f"{CALL} and"
    long = '{"name": "add", "arguments": {"a": ' + " " * LONGEST
    _, _, early = _read([long, "x"])
    assert early[0], "the text that is held back is limited"


@given(before=st.text(max_size=8), after=st.text(max_size=8), cuts=st.lists(st.integers(0, 80), max_size=6))
def test_no_character_is_lost_with_any_split(before: str, after: str, cuts: list[int]) -> None:
    reply = f"{before}{CALL}{after}"
    places = sorted({0, len(reply), *(cut for cut in cuts if cut < len(reply))})
    pieces = [reply[a:b] for a, b in pairwise(places)]
    content, calls, _ = _read(pieces)
    whole, called, _ = _read([reply])
    assert (content, calls) == (whole, called)
    assert calls or content == reply


# ── validation of arguments ─────────────────────────────────────────────────────────────────────────────────────────

_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, "", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
_types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def _schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _types | st.lists(_types, min_size=1, max_size=2, unique=True),
            "enum": st.lists(_values, min_size=1, max_size=3),
            "const": _values,
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.lists(st.sampled_from("ab"), unique=True, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "not": inner,
            "minimum": st.integers(0, 2),
            "exclusiveMaximum": st.integers(0, 2),
            "maxLength": st.integers(0, 2),
            "minItems": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "$ref": st.just("#/$defs/x"),
            "description": st.just("d"),
        },
    )


@given(schema=st.recursive(st.booleans(), _schema, max_leaves=5), value=_values)
def test_a_valid_value_is_valid_for_jsonschema(schema: Any, value: Any) -> None:
    root = {**schema, "$defs": {"x": {"type": "string"}}} if isinstance(schema, dict) else schema
    if is_valid(value, root):
        assert jsonschema.Draft202012Validator(root).is_valid(value)


@given(value=_values)
def test_simple_schemas_agree_with_jsonschema(value: Any) -> None:
    schema = {"type": ["object", "integer"], "properties": {"a": {"type": "number"}}, "required": ["b"], "minimum": 1}
    assert is_valid(value, schema) == jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("schema", [{"type": "any"}, {"properties": ["a"]}, {"required": 1}, {"enum": None}, [], None])
def test_a_malformed_schema_makes_no_value_valid(schema: Any) -> None:
    assert not is_valid({"a": 1}, schema)
