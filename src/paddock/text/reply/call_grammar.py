"""One tool call in each shape, as a part of a grammar: it can be nothing but a call that keeps to its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from paddock.errors import InvalidRequest
from paddock.text.reply.lark import Lark
from paddock.text.reply.schemas import NOTES, resolved
from paddock.text.reply.shapes import (
    BracedCalls,
    Calls,
    NamedCalls,
    NestedCalls,
    ObjectCalls,
    PythonCalls,
    TaggedCalls,
)
from paddock.types import Constraint, Tool

_NOTES = NOTES | {"type"}
# What would say of several arguments together.
_NOT_BY_ONE = frozenset(
    {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"minProperties", "maxProperties", "propertyNames", "enum", "const"}
)
# What may name further properties.
_OPEN = frozenset({"additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf", "if"})
_OBJECT = frozenset({"properties", "required", "$defs", "definitions"})
_PLAIN_NAME = re.compile(r"[\w.$-]+")
_PLACEHOLDER = re.compile(r"(\{number\}|\{kind\})")
_DEEPEST = 8
"""Values in values; further in they are JSON."""


def written_call(grammar: Lark, calls: Calls, tool: Tool, place: int, *, after: str = "") -> str:
    """One call of this function, after its opening and what else of its name has been said."""
    param = f"tools[{place}].function.parameters"
    match calls:
        case ObjectCalls():
            before = object_opening(calls, tool.name)
            return f"{grammar.written(before)} {object_rest(grammar, calls, tool, place)}"
        case NamedCalls():
            header = _filled(grammar, calls.header.replace("{name}", tool.name).removeprefix(after), calls.kinds)
            arguments = grammar.part(_arguments(tool.parameters, param))
            return " ".join(filter(None, (header, arguments, grammar.written(calls.closing))))
        case TaggedCalls():
            return _tagged(grammar, calls, tool, param, after)
        case BracedCalls():
            members = _members(
                [
                    (f"{grammar.written(f'{name}:')} {_braced_value(grammar, calls, schema, tool, where)}", needed)
                    for name, schema, needed, where in _properties(tool, param)
                ],
                grammar.written(","),
            )
            return f"{grammar.written(tool.name + '{')} {members} {grammar.written('}' + calls.closing)}"
        case NestedCalls():
            members = _members(
                [
                    (_element(grammar, calls, name, schema, tool, where), needed)
                    for name, schema, needed, where in _properties(tool, param)
                ]
            )
            return f"{grammar.written(tool.name + calls.name_end)} {members} {grammar.written(calls.closing)}"
        case PythonCalls():
            members = _members(
                [
                    (f"{grammar.written(f'{name}=')} {grammar.part(_json(schema, tool, where))}", needed)
                    for name, schema, needed, where in _properties(tool, param)
                ],
                grammar.written(", "),
            )
            return f"{grammar.written(tool.name + '(')} {members} {grammar.written(')')}"
        case _:
            raise AssertionError("there are no other kinds of calls")


def named_so_far(calls: Calls, name: str) -> str:
    """The first of what is written of a call of this function, up to where it can be no other's."""
    match calls:
        case NamedCalls():
            return _PLACEHOLDER.split(calls.header.replace("{name}", name))[0]
        case TaggedCalls():
            return name + calls.name_end.partition("{")[0]
        case _:
            raise AssertionError("no other kind shares its opening with content")


# ── JSON objects ─────────────────────────────────────────────────────────────────────────────────────────────────────


def object_opening(calls: ObjectCalls, name: str) -> str:
    """A call that is an object, up to its arguments."""
    if calls.keyed:
        return f"{{{json.dumps(name)}: "
    return f"{{{json.dumps(calls.name_key)}: {json.dumps(name)}, {json.dumps(calls.arguments_key)}: "


def object_rest(grammar: Lark, calls: ObjectCalls, tool: Tool, place: int) -> str:
    arguments = grammar.part(_arguments(tool.parameters, f"tools[{place}].function.parameters"))
    return f"{arguments} {grammar.written('}' + calls.closing)}"


def _arguments(schema: dict[str, Any], param: str) -> Constraint:
    """The schema of a function's arguments: an object whether it says so or not, with no more than what it names."""
    closed = {} if schema.keys() & _OPEN or "properties" not in schema else {"additionalProperties": False}
    return Constraint("json_schema", json.dumps({"type": "object", **closed, **schema}), param)


# ── arguments one by one ─────────────────────────────────────────────────────────────────────────────────────────────


def _properties(tool: Tool, param: str) -> list[tuple[str, Any, bool, str]]:
    """The arguments one by one: name, schema, whether it must be there, and where that is said."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or set(required) - properties.keys():
        raise InvalidRequest("this model needs every argument named among the properties", param=param)
    if odd := [name for name in properties if not _PLAIN_NAME.fullmatch(name)]:
        raise InvalidRequest(f"this model cannot write an argument named {odd[0]!r}", param=param)
    if more := tool.parameters.keys() & _NOT_BY_ONE:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes arguments", param=param)
    return [(name, schema, name in required, f"{param}.properties.{name}") for name, schema in properties.items()]


def _members(members: Sequence[tuple[str, bool]], comma: str = "") -> str:
    """Members of an object, those that are needed first, with commas between them."""
    needed = [member for member, is_needed in members if is_needed]
    others = [member for member, is_needed in members if not is_needed]
    if needed or not comma:
        inside = f" {comma} ".join(needed)
        return inside + "".join(f" ({comma} {other})?" for other in others)
    # Whichever comes first has no comma before it.
    firsts = [
        " ".join([other, *(f"({comma} {later})?" for later in others[at + 1 :])]) for at, other in enumerate(others)
    ]
    return f"({' | '.join(firsts)})?" if firsts else ""


def _json(schema: Any, tool: Tool, param: str) -> Constraint:
    """A value as JSON."""
    shared = {name: tool.parameters[name] for name in tool.parameters.keys() & {"$defs", "definitions"}}
    source = {**shared, **schema} if isinstance(schema, dict) else schema
    return Constraint("json_schema", json.dumps(source), param)


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _text(grammar: Lark, schema: Mapping[str, Any], end: str, param: str) -> str:
    """A text as it is, and what ends it."""
    if more := schema.keys() - _NOTES - {"enum"}:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes texts", param=param)
    if "enum" not in schema:
        return grammar.until(end)
    words = [grammar.written(word + end) for word in schema["enum"] if isinstance(word, str) and end not in word]
    if not words:
        raise InvalidRequest("no text satisfies this", param=param)
    return f"({' | '.join(words)})"


def _filled(grammar: Lark, text: str, kinds: Sequence[str] = ()) -> str:
    """A marker with placeholders."""
    parts = [
        "/[0-9]{1,9}/" if part == "{number}" else grammar.one_of(kinds) if part == "{kind}" else grammar.written(part)
        for part in _PLACEHOLDER.split(text)
    ]
    return " ".join(filter(None, parts))


def _tagged(grammar: Lark, calls: TaggedCalls, tool: Tool, param: str, after: str) -> str:
    name = (tool.name + calls.name_end.replace("{name}", tool.name)).removeprefix(after)
    members = _members(
        [
            (_tagged_argument(grammar, calls, name, resolved(schema, tool.parameters), tool, where), needed)
            for name, schema, needed, where in _properties(tool, param)
        ]
    )
    return f"{_filled(grammar, name)} {grammar.shared('arguments', f'{members} {grammar.written(calls.closing)}')}"


def _tagged_argument(grammar: Lark, calls: TaggedCalls, name: str, schema: Any, tool: Tool, param: str) -> str:
    is_text = _is_text(schema)
    opening = calls.key_opening + name + calls.key_closing
    opening += calls.value_opening.replace("{text}", "true" if is_text else "false").replace("{type}", _type(schema))
    if not is_text:
        value = grammar.part(_json(schema, tool, param))
        return f"{grammar.written(opening)} {value} {grammar.written(calls.value_closing)}"
    # Up to where the parser sees the end, which needs no line of its own.
    end = calls.value_closing.strip()
    after = grammar.written(calls.value_closing.partition(end)[2])
    return f"{grammar.written(opening)} {_text(grammar, schema, end, param)} {after}"


def _type(schema: Any) -> str:
    type = schema.get("type") if isinstance(schema, Mapping) else None
    return "number" if type == "integer" else type if isinstance(type, str) else "object"


# ── values in values ─────────────────────────────────────────────────────────────────────────────────────────────────


def _braced_value(grammar: Lark, calls: BracedCalls, schema: Any, tool: Tool, param: str, depth: int = 0) -> str:
    """A value with quotation marks of its own, or plain JSON where its schema says too much for that."""
    schema = resolved(schema, tool.parameters)
    if _is_text(schema) and not schema.keys() - _NOTES - {"enum"}:
        return f"{grammar.written(calls.quote)} {_text(grammar, schema, calls.quote, param)}"
    if (items := _items(schema, depth)) is not None:
        item = _braced_value(grammar, calls, items, tool, param, depth + 1)
        return f'"[" ({item} ("," {item})*)? "]"'
    if (properties := _nested_properties(schema, depth)) is not None:
        members = _members(
            [
                (
                    f"{grammar.written(f'{name}:')} {_braced_value(grammar, calls, inner, tool, param, depth + 1)}",
                    needed,
                )
                for name, inner, needed in properties
            ],
            grammar.written(","),
        )
        return f'"{{" {members} "}}"'
    return grammar.part(_json(schema, tool, param))


def _element(grammar: Lark, calls: NestedCalls, name: str, schema: Any, tool: Tool, param: str, depth: int = 0) -> str:
    """A value between tags of this name: with tags in it, or JSON where its schema says too much for that."""
    schema, opening = resolved(schema, tool.parameters), grammar.written(calls.opens(name))
    if _is_text(schema):
        return f"{opening} {_text(grammar, schema, calls.closes(name), param)}"
    if (items := _items(schema, depth)) is not None:
        inside = f"({_element(grammar, calls, 'item', items, tool, param, depth + 1)})*"
    elif (properties := _nested_properties(schema, depth)) is not None:
        inside = _members(
            [
                (_element(grammar, calls, key, inner, tool, param, depth + 1), needed)
                for key, inner, needed in properties
            ]
        )
    else:
        inside = grammar.part(_json(schema, tool, param))
    return f"{opening} {inside} {grammar.written(calls.closes(name))}"


def _items(schema: Any, depth: int) -> Any:
    """The schema of an array's items, where that is all that is said of it."""
    if not isinstance(schema, Mapping) or schema.get("type") != "array" or depth > _DEEPEST:
        return None
    items = schema.get("items")
    return items if isinstance(items, Mapping) and not schema.keys() - _NOTES - {"items"} else None


def _nested_properties(schema: Any, depth: int) -> list[tuple[str, Any, bool]] | None:
    """The members of an object, where no more is said of it than what they are."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object" or depth > _DEEPEST:
        return None
    properties, required = schema.get("properties"), schema.get("required", [])
    if schema.keys() - _NOTES - _OBJECT - {"additionalProperties"} or not isinstance(properties, dict):
        return None
    if not isinstance(required, list) or set(required) - properties.keys():
        return None
    if not all(_PLAIN_NAME.fullmatch(name) for name in properties):
        return None
    return [(name, inner, name in required) for name, inner in properties.items()]
