"""JSON schemas to try structured output with: written by hand, drawn from a seeded generator, and the official suite's
where it lies beside the models.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

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

HAND_WRITTEN: list[Any] = [
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

_NAMES = (
    "id",
    "name",
    "title",
    "email",
    "price",
    "tags",
    "created_at",
    "isActive",
    "user-agent",
    "größe",
    "a b",
    "",
    '"',
)
_FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "duration")
_PATTERNS = (
    r"^[a-z]+$", r"^\d{3}-\d{4}$", r"^(GET|POST)$", r"^#[0-9a-fA-F]{6}$", r"^v\d+\.\d+$", r"[aeiou]{2}",
    r"^[^\s@]{1,8}$", r"^\w{2,5}$", r"^(a|b)*c?$", r"^.{3}$",
)  # fmt: skip
_CONSTANTS: tuple[Any, ...] = (
    "x",
    "",
    "ü🐎",
    'a"b\\c',
    0,
    -1,
    1.5,
    1e6,
    True,
    False,
    None,
    [],
    {},
    [1, "a"],
    {"k": [None]},
)
# Each says something that a mask of tokens cannot keep to, or is thought to be beyond it.
_HARD: tuple[Schema, ...] = (
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"not": {"type": "null"}},
    {"if": {"type": "string"}, "then": {"maxLength": 3}},
    {"contains": {"const": 1}, "maxItems": 3},
    {"dependentRequired": {"a": ["b"]}},
    {"propertyNames": {"pattern": "^[a-z]+$"}},
    {"unevaluatedProperties": False},
    {"type": "string", "format": "regex"},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "integer", "minimum": 3, "maximum": 1},
    {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1},
    {"$ref": "https://example.com/elsewhere.json"},
    {"$ref": "#/$defs/missing"},
    {"enum": []},
    {"type": "int"},
)


def generated(count: int, seed: int = 4) -> list[Schema]:
    """So many schemas, no two the same: records as an application would ask for them, with oddities among them."""
    source = _Generator(random.Random(seed))
    found: dict[str, Schema] = {}
    while len(found) < count:
        schema = source.schema()
        found.setdefault(json.dumps(schema, sort_keys=True), schema)
    return list(found.values())


class _Generator:
    """Small schemas, so that a small model comes to an end with them."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def schema(self) -> Schema:
        kinds: list[Callable[[], Schema]] = [
            *[lambda: self._record(2)] * 6,
            lambda: self._list(2),
            lambda: self._union(2),
            lambda: self._both(),
            lambda: self._referring(),
            lambda: self._recursive(),
            lambda: self._map(),
            lambda: self._leaf(),
            lambda: self._draw.choice(_HARD),
            lambda: self._record_with(self._draw.choice(_HARD)),
        ]
        schema = self._draw.choice(kinds)()
        if self._draw.random() < 0.3:
            schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Asked", **schema}
        return schema

    def _any(self, depth: int) -> Schema:
        kinds = [self._leaf] * 4
        if depth:
            kinds += [lambda: self._record(depth - 1), lambda: self._list(depth - 1), lambda: self._union(depth - 1)]
        return self._draw.choice(kinds)()

    def _leaf(self) -> Schema:
        schema = self._draw.choice((self._text, self._integer, self._number, self._choice, self._flag))()
        if self._draw.random() < 0.2:
            schema["description"] = "What it is."
        if self._draw.random() < 0.1 and isinstance(schema.get("type"), str):
            schema["type"] = [schema["type"], "null"]
        return schema

    def _text(self) -> Schema:
        match self._draw.randrange(4):
            case 0:
                return {"type": "string", "format": self._draw.choice(_FORMATS)}
            case 1:
                return {"type": "string", "pattern": self._draw.choice(_PATTERNS)}
            case 2:
                shortest = self._draw.randrange(4)
                return {"type": "string", "minLength": shortest, "maxLength": shortest + self._draw.randrange(5)}
            case _:
                return {"type": "string", "maxLength": self._draw.randint(1, 12)}

    def _integer(self) -> Schema:
        low = self._draw.choice((-1000, -7, 0, 1, 18, 2**31))
        bounds: tuple[Schema, ...] = (
            {"minimum": low, "maximum": low + self._draw.randint(0, 300)},
            {"exclusiveMinimum": low, "exclusiveMaximum": low + self._draw.randint(2, 30)},
            {"minimum": 0, "maximum": 1000, "multipleOf": self._draw.choice((2, 5, 10, 100))},
            {"maximum": low},
        )
        return {"type": "integer", **self._draw.choice(bounds)}

    def _number(self) -> Schema:
        low = self._draw.choice((-1.5, 0, 0.25, 99.99))
        bounds: tuple[Schema, ...] = (
            {"minimum": low, "maximum": low + 1},
            {"exclusiveMinimum": low, "maximum": low + 10.5},
            {"minimum": low},
        )
        return {"type": "number", **self._draw.choice(bounds)}

    def _choice(self) -> Schema:
        if self._draw.random() < 0.3:
            return {"const": self._draw.choice(_CONSTANTS)}
        values = self._draw.sample(range(len(_CONSTANTS)), self._draw.randint(1, 4))
        return {"enum": [_CONSTANTS[index] for index in values]}

    def _flag(self) -> Schema:
        return {"type": self._draw.choice(("boolean", "null"))}

    def _record(self, depth: int) -> Schema:
        names = self._draw.sample(_NAMES, self._draw.randint(1, 4))
        schema: Schema = {"type": "object", "properties": {name: self._any(depth) for name in names}}
        schema["required"] = [name for name in names if self._draw.random() < 0.7]
        if self._draw.random() < 0.8:
            schema["additionalProperties"] = False
        return schema

    def _record_with(self, schema: Schema) -> Schema:
        return {"type": "object", "properties": {"a": self._leaf(), "b": schema}, "required": ["a", "b"]}

    def _list(self, depth: int) -> Schema:
        shortest = self._draw.randrange(3)
        if self._draw.random() < 0.2:
            places = [self._leaf() for _ in range(shortest + 1)]
            return {"type": "array", "prefixItems": places, "items": False, "minItems": shortest}
        longest = shortest + self._draw.randrange(3)
        return {"type": "array", "items": self._any(depth), "minItems": shortest, "maxItems": longest}

    def _union(self, depth: int) -> Schema:
        if self._draw.random() < 0.5:
            return {"anyOf": [self._any(depth) for _ in range(self._draw.randint(1, 3))]}
        kinds = [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": self._leaf()},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind in ("circle", "square")
        ]
        return {self._draw.choice(("oneOf", "anyOf")): kinds}

    def _both(self) -> Schema:
        halves = [
            {"type": "object", "properties": {name: self._leaf()}, "required": [name]}
            for name in self._draw.sample(_NAMES, 2)
        ]
        return {"allOf": halves}

    def _referring(self) -> Schema:
        place = self._draw.choice(("$defs", "definitions"))
        to = {"$ref": f"#/{place}/thing"}
        shapes: tuple[Schema, ...] = (
            {"type": "array", "items": to, "maxItems": 2},
            {"type": "object", "properties": {"first": to, "second": to}, "required": ["first"]},
            {"anyOf": [to, {"type": "null"}]},
            to,
        )
        return {place: {"thing": self._record(0)}, **self._draw.choice(shapes)}

    def _recursive(self) -> Schema:
        again = self._draw.choice(({"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"type": "null"}]}))
        properties = {"value": self._leaf(), "next": again}
        return {"type": "object", "properties": properties, "required": ["value"], "additionalProperties": False}

    def _map(self) -> Schema:
        shapes: tuple[Schema, ...] = (
            {"additionalProperties": self._leaf(), "maxProperties": self._draw.randint(1, 2)},
            {"additionalProperties": self._leaf(), "minProperties": 1, "maxProperties": 2},
            {"patternProperties": {"^[a-z]{2}$": self._leaf()}, "additionalProperties": False},
            {"properties": {"id": self._leaf()}, "required": ["id", "also"], "additionalProperties": self._leaf()},
        )
        return {"type": "object", **self._draw.choice(shapes)}


_DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


def official() -> Iterator[tuple[str, Any]]:
    """The draft and each schema of its tests, but for patterns that Python does not know, so that nobody could tell
    whether an answer keeps to them; nothing on a machine without the suite.
    """
    models = os.environ.get("PADDOCK_TEST_MODELS")
    tests = Path(models).parent / "json-schema-suite" / "tests" if models else None
    seen = set()
    for draft in _DRAFTS:
        for file in sorted((tests / draft).glob("*.json")) if tests else ():
            for group in json.loads(file.read_text("utf-8")):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema = {**schema, "$schema": _DRAFTS[draft]}  # without it the newer draft would be meant
                text = json.dumps(schema, sort_keys=True).replace(_DRAFTS[draft], "")
                if text not in seen and r"\\p{" not in text:
                    seen.add(text)
                    yield draft, schema
