"""Rewritten schemas: exactly the same instances satisfy them, and more of them can be compiled."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from paddock.engine.grammar import _schema as grammar_of
from paddock.engine.schema import rewritten
from paddock.engine.schema.facts import Document, equal
from tests.schemas import official

_VALIDATORS = {"draft2020-12": jsonschema.Draft202012Validator, "draft7": jsonschema.Draft7Validator}
_TOKENIZER = LLTokenizer("byte")


def _is_valid(schema: Any, instance: Any, draft: str = "draft2020-12") -> bool:
    return bool(_VALIDATORS[draft](schema).is_valid(instance))


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_KINDS = {"a": {"const": "a"}, "b": {"const": "b"}}
_TWO = {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "x": {"type": "integer"}}}
REWRITTEN: list[Any] = [
    {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": ["null", "array"]}]},
    {"oneOf": [{"enum": [1, 2]}, {"enum": [3, "1"]}, {"const": True}]},
    {"oneOf": [{"type": "string"}, {"enum": [1, None]}]},
    {
        "$defs": {
            kind: {"type": "object", "properties": {"k": schema}, "required": ["k"]} for kind, schema in _KINDS.items()
        },
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    },
    # Only one of the branches requires the property.
    {
        "type": "object",
        "oneOf": [{"properties": {"k": {"const": "a"}}, "required": ["k"]}, {"properties": {"k": {"const": "b"}}}],
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
            {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": False},
        ]
    },
    {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
    {"type": "object", "dependentRequired": {"a": ["b", "c"]}},
    {"type": "object", "dependencies": {"a": ["b"], "c": {"properties": {"d": {"type": "integer"}}}}},
    {"type": "object", "dependentSchemas": {"a": {"required": ["b"], "properties": {"b": {"type": "null"}}}}},
    {**_TWO, "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}},
    {**_TWO, "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]}, "then": {"required": ["x"]}},
    {**_TWO, "required": ["k"], "if": {"properties": {"k": {"enum": ["a", "z"]}}}, "else": {"required": ["x"]}},
    {**_TWO, "allOf": [{"if": {"required": ["x"]}, "then": {"required": ["k"]}, "else": {"required": ["y"]}}]},
    {"type": "string", "format": "sonnet"},
]
UNCHANGED: list[Any] = [
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"const": 1}, {"const": 1.0}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},  # a number satisfies both
    {"oneOf": [{"properties": {"k": {"const": "a"}}}, {"properties": {"k": {"const": "b"}}}], "type": "object"},
    {"type": "object", "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}},  # k may be anything
    {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}, "properties": {"k": {"enum": ["a"]}}},
    {"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]},
]


@pytest.mark.parametrize("schema", REWRITTEN, ids=lambda schema: json.dumps(schema)[:60])
def test_a_schema_is_rewritten_and_compiled(schema: Any) -> None:
    assert not {"oneOf", "if", "dependencies", "dependentRequired", "dependentSchemas"} & rewritten(schema).keys()
    grammar_of(json.dumps(schema))


@pytest.mark.parametrize("schema", UNCHANGED, ids=lambda schema: json.dumps(schema)[:60])
def test_an_uncertain_schema_stays_unchanged(schema: Any) -> None:
    assert rewritten(schema) == schema


def test_the_comparison_of_branches_is_limited() -> None:
    branches = [{"type": "object", "properties": {"x": {"enum": list(range(40))}}, "required": ["x"]}] * 256
    assert "oneOf" in rewritten({"oneOf": branches})


def test_standard_formats_and_properties_named_format_stay() -> None:
    schema = {"properties": {"format": {"type": "string", "format": "date"}}, "const": {"format": "sonnet"}}
    assert rewritten(schema) == schema


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────────────

_names = st.sampled_from(["a", "b", "c"])
_atoms: st.SearchStrategy[Any] = st.sampled_from([None, True, False, 0, 1, 1.0, 1.5, "a", "b"])
_instances = st.recursive(
    _atoms, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=3), max_leaves=5
)
_types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def _with(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(_names, inner, min_size=1, max_size=2)
    names = st.lists(_names, unique=True, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _types | st.just("object") | st.lists(_types, min_size=1, max_size=2, unique=True),
            "enum": st.lists(_instances, min_size=1, max_size=3),
            "const": _instances,
            "properties": named,
            "required": names,
            "additionalProperties": st.just(False) | inner,
            "oneOf": some,
            "anyOf": some,
            "allOf": some,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentRequired": st.dictionaries(_names, names, max_size=2),
            "dependentSchemas": named,
        },
    )


_leaves = st.booleans() | st.fixed_dictionaries({}, optional={"type": _types, "const": _atoms})
_schemas = st.recursive(_leaves, _with, max_leaves=6)
_objects = st.dictionaries(_names, _atoms, max_size=3)


@given(schema=_schemas, instances=st.lists(_instances | _objects, min_size=1, max_size=8))
def test_the_same_instances_satisfy_the_rewritten_schema(schema: Any, instances: list[Any]) -> None:
    new = rewritten(schema)
    for instance in instances:
        assert _is_valid(schema, instance) == _is_valid(new, instance), (schema, new, instance)


_conditions = st.fixed_dictionaries(
    {"properties": st.fixed_dictionaries({"a": st.fixed_dictionaries({"enum": st.lists(_atoms, min_size=1)})})},
    optional={"required": st.just(["a"]), "type": st.just("object")},
)


@given(
    domain=st.lists(_atoms, min_size=1, max_size=4),
    required=st.lists(_names, unique=True),
    condition=_conditions | st.just({"required": ["b"]}),
    then=st.lists(_names, unique=True),
    otherwise=st.lists(_names, unique=True),
    instances=st.lists(_objects, min_size=1, max_size=8),
)
def test_conditions_over_values_are_rewritten_exactly(
    domain: list[Any], required: list[str], condition: Any, then: list[str], otherwise: list[str], instances: list[Any]
) -> None:
    schema = {
        "type": "object", "properties": {"a": {"enum": domain}}, "required": required,
        "if": condition, "then": {"required": then}, "else": {"required": otherwise},
    }  # fmt: skip
    new = rewritten(schema)
    assert "if" not in new
    for instance in instances:
        assert _is_valid(schema, instance) == _is_valid(new, instance), (schema, new, instance)


@given(schemas=st.lists(_schemas, min_size=1, max_size=3), instance=_instances | _objects)
def test_an_empty_schema_has_no_instance(schemas: list[Any], instance: Any) -> None:
    document = Document({"allOf": schemas})
    if document.is_empty(schemas):
        assert not all(_is_valid(schema, instance) for schema in schemas)


def test_an_index_of_thousands_of_digits_is_not_found() -> None:
    assert Document({"anyOf": [False]}).resolve(f"#/anyOf/{'0' * 5000}") is True


@given(one=_instances, other=_instances)
def test_equality_is_that_of_json_schema(one: Any, other: Any) -> None:
    assert equal(one, other) == _is_valid({"const": one}, other)


# ── the official suite ───────────────────────────────────────────────────────────────────────────────────────────────


def _suite() -> Iterator[tuple[str, Any, list[Any]]]:
    models = os.environ.get("PADDOCK_TEST_MODELS")
    tests = Path(models).parent / "json-schema-suite" / "tests" if models else None
    for draft in _VALIDATORS:
        for file in sorted((tests / draft).glob("*.json")) if tests else ():
            for group in json.loads(file.read_text("utf-8")):
                yield draft, group["schema"], [test["data"] for test in group["tests"]]


def _compiled(source: str) -> str | None:
    try:
        return grammar_of(source)
    except Exception:
        return None


def test_the_official_suite_keeps_its_meaning_and_more_of_it_is_compiled() -> None:
    groups = list(_suite())
    if not groups:
        pytest.skip("no JSON-Schema test suite beside PADDOCK_TEST_MODELS")
    for draft, schema, instances in groups:
        if r"\p{" in json.dumps(schema):
            continue
        new = rewritten(schema)
        grammar = _compiled(json.dumps(schema)) if new != schema else None
        for instance in instances:
            try:
                expected = _is_valid(schema, instance, draft)
            except Exception:
                continue  # it refers to a document that is not here
            assert _is_valid(new, instance, draft) == expected, (schema, new, instance)
            if grammar is not None and _admits(grammar, instance):
                assert expected, (schema, instance)
    schemas = [schema for _, schema in official() if isinstance(schema, dict)]
    assert sum(_compiled(json.dumps(schema)) is not None for schema in schemas) >= 225, "208 of 440 without rewriting"


def _admits(grammar: str, instance: Any) -> bool:
    matcher = LLMatcher(_TOKENIZER, grammar, log_level=0)
    tokens = list(json.dumps(instance, ensure_ascii=False).encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize("name", ["date", "date-time"])
def test_a_date_does_not_have_the_year_zero(name: str) -> None:
    rest = "" if name == "date" else "T00:00:00Z"
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": name}}, "required": ["format"]}
    for year, allowed in (("0000", False), ("0001", True), ("0999", True), ("2026", True)):
        matcher = LLMatcher(_TOKENIZER, grammar_of(json.dumps(schema)))
        tokens = _TOKENIZER.tokenize_str(json.dumps({"format": f"{year}-01-31{rest}"}))
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) is allowed
