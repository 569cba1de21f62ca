"""Promise 4, of structured output: what stops is what was asked for; what cannot be enforced is refused by name."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.server import Server, chat_body

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}

SCHEMAS: list[Any] = [
    {},
    True,
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "string"},
    {"type": "array"},
    {"type": "object"},
    {"type": ["string", "null"]},
    {"type": ["integer", "boolean", "null"]},
    {"const": "exactly this"},
    {"const": {"nested": [1, 2, {"three": None}]}},
    {"const": 'with "quotes" and \\ and \n and ü'},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, 2.5, None, True, "mixed", [1], {"a": 1}]},
    {"type": "integer", "minimum": 10, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    {"type": "integer", "minimum": -1000000, "maximum": -999990},
    {"type": "integer", "multipleOf": 7},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0.25, "maximum": 0.75},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
    {"type": "string", "pattern": "^(yes|no|maybe)$"},
    {"type": "string", "pattern": "^[^a-z]{1,6}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 4}, {"type": "integer"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3, "minItems": 2},
    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"const": "none"}]}, "maxItems": 3},
    _PERSON,
    _TREE,
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 1},
    {"type": "object", "patternProperties": {"^x_[a-z]{1,3}$": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "properties": {"who": _PERSON, "when": {"type": "string", "format": "date"}},
     "required": ["who", "when"], "additionalProperties": False},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 8}]},
    {"anyOf": [_PERSON, {"type": "null"}]},
    {"oneOf": [{"type": "string", "maxLength": 8}, {"type": "integer"}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
                "required": ["kind", "lives"], "additionalProperties": False},
               {"type": "object", "properties": {"kind": {"const": "dog"}, "good": {"const": True}},
                "required": ["kind", "good"], "additionalProperties": False}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "string", "maxLength": 5}}, "required": ["b"]}]},
    {"allOf": [{"minimum": 5}, {"maximum": 9}], "type": "integer"},
    {"definitions": {"id": {"type": "integer", "minimum": 1}}, "type": "object",
     "properties": {"id": {"$ref": "#/definitions/id"}}, "required": ["id"], "additionalProperties": False},
    {"$defs": {"c": {"enum": ["x", "y"]}}, "type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 4},
    {"title": "Titled", "description": "with words", "default": 1, "examples": [2], "type": "integer", "maximum": 99},
    {"type": "object", "properties": {"ünï": {"type": "string", "enum": ["ß", "木", "🐎"]}}, "required": ["ünï"],
     "additionalProperties": False},
    {"type": "object", "properties": {f"key{n}": {"type": "boolean"} for n in range(8)},
     "required": [f"key{n}" for n in range(8)], "additionalProperties": False},
]  # fmt: skip


def _ask(server: Server, **options: Any) -> dict[str, Any]:
    body = server.chat("Tell me something about a horse, as short JSON.", max_tokens=64, **options)
    choice: dict[str, Any] = body["choices"][0]
    return choice


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "asked", "strict": True, "schema": schema}}


@pytest.mark.parametrize("part", range(4))
def test_every_answer_that_stops_validates(demo_server: Server, part: int) -> None:
    """Of a small model that by itself hardly ever writes valid JSON; four at a time, beside each other."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER

    def check(numbered: tuple[int, Any]) -> bool:
        number, schema = numbered
        named = {"json_schema": schema} if isinstance(schema, bool) else {"response_format": _format(schema)}
        choice = _ask(demo_server, temperature=1.0, seed=number, **named)
        if choice["finish_reason"] != "stop":
            assert choice["finish_reason"] == "length"
            return False
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(
            json.loads(choice["message"]["content"])
        )
        return True

    with ThreadPoolExecutor(4) as pool:
        stopped = list(pool.map(check, list(enumerate(SCHEMAS))[part::4]))
    assert sum(stopped) >= len(stopped) / 3, "many are short enough to come to an end"


def test_a_json_object_is_an_object(demo_server: Server) -> None:
    choice = _ask(demo_server, response_format={"type": "json_object"}, temperature=0)
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert choice["message"]["content"].startswith("{")


def test_every_answer_of_several_keeps_to_it_and_a_neighbour_is_free(demo_server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        free = pool.submit(demo_server.chat, "Say hello.", max_tokens=24, temperature=0, deterministic=True)
        body = demo_server.chat("Pick.", n=4, temperature=2.0, response_format=_format({"enum": ["red", "green"]}))
        beside = free.result()["choices"][0]["message"]["content"]
    assert all(json.loads(choice["message"]["content"]) in ("red", "green") for choice in body["choices"])
    alone = demo_server.chat("Say hello.", max_tokens=24, temperature=0, deterministic=True)
    assert beside == alone["choices"][0]["message"]["content"]


def test_a_gbnf_grammar_is_kept_to(demo_server: Server) -> None:
    grammar = r"""
        root  ::= item (", " item){1,2} "."
        item  ::= [A-Z] [a-z]{2,5} | number
        number ::= "-"? [1-9] [0-9]{0,2}
    """
    choice = _ask(demo_server, grammar=grammar, temperature=1.2)
    assert choice["finish_reason"] == "stop"
    item = r"(?:[A-Z][a-z]{2,5}|-?[1-9][0-9]{0,2})"
    assert re.fullmatch(rf"{item}(?:, {item}){{1,2}}\.", choice["message"]["content"])


def test_a_streamed_answer_keeps_to_it_too(demo_server: Server) -> None:
    body = chat_body("A number?", stream=True, json_schema={"type": "integer", "minimum": 100, "maximum": 999})
    with demo_server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [
            json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: {")
        ]
    text = "".join(line["choices"][0]["delta"].get("content", "") for line in lines)
    assert 100 <= int(text) <= 999


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"contains": {"type": "integer"}}, "contains"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "format": "sonnet"}, "sonnet"),
        ({"type": "text"}, "text"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(demo_server: Server, schema: Any, named: str) -> None:
    body = chat_body("hi", response_format=_format(schema))
    response = demo_server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "response_format"
    assert named in error["message"]
