"""One tool call in each shape, as a part of a grammar: it can be nothing but a call that keeps to its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from paddock.errors import InvalidRequest
from paddock.text.reply.lark import Lark, escaped
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
_PLACEHOLDER = re.compile(r"(\{number\}|\{kind\}|\{id\})")
_SPACE = r"[ \n\t]{0,16}"
_ID = "[A-Za-z0-9]{1,40}"
_PYTHON_TEXT = r"/'([^'\\]|\\[nt'\"\\])*'/"
_IN_PYTHON = {"boolean": ("True", "False"), "null": ("None",)}
"""As some templates print values, and so their models."""
_MOST_MEMBERS = 100
_DEEPEST = 8
"""Values in values; further in they are JSON."""


def written_call(grammar: Lark, calls: Calls, tool: Tool, place: int, *, after: str = "") -> str:
    """One call of this function, after its opening and what else of its name has been said."""
    param = f"tools[{place}].function.parameters"
    match calls:
        case ObjectCalls():
            opening, id = grammar.written(_object_opening(calls, tool.name)), ""
            if grammar.loose:
                opening = grammar.rule(f"OPENING{place}", f"/{object_pattern(calls, [tool.name])}/")
                id = f'(/,{_SPACE}"{calls.id_key}"{_SPACE}:{_SPACE}"{_ID}"/)?' if calls.id_key else ""
            arguments = grammar.part(_arguments(tool.parameters, param))
            return f"{opening} {arguments} {id} {grammar.space('')} {grammar.spaced('}' + calls.closing)}"
        case NamedCalls():
            header = calls.header.replace("{name}", tool.name).removeprefix(after)
            arguments = grammar.part(_arguments(tool.parameters, param))
            return f"{_filled(header, grammar.written, calls.kinds)} {arguments} {grammar.spaced(calls.closing)}"
        case TaggedCalls():
            return _tagged(grammar, calls, tool, param, after)
        case BracedCalls():
            members = _members(
                grammar,
                [
                    (f"{grammar.written(f'{name}:')} {_braced_value(grammar, calls, schema, tool, where)}", needed)
                    for name, schema, needed, where in sorted(_properties(tool, param), key=itemgetter(0))
                ],
                grammar.written(","),
            )
            return f"{grammar.written(tool.name + '{')} {members} {grammar.written('}' + calls.closing)}"
        case NestedCalls():
            members = _members(
                grammar,
                [
                    (_element(grammar, calls, name, schema, tool, where), needed)
                    for name, schema, needed, where in _properties(tool, param)
                ],
            )
            return f"{grammar.written(tool.name + calls.name_end)} {members} {grammar.spaced(calls.closing)}"
        case PythonCalls():
            members = _members(
                grammar,
                [
                    (f"{grammar.written(f'{name}=')} {_python_value(grammar, schema, tool, where)}", needed)
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


def _object_opening(calls: ObjectCalls, name: str) -> str:
    """A call that is an object, up to its arguments."""
    if calls.keyed:
        return f"{{{json.dumps(name)}: "
    return f"{{{json.dumps(calls.name_key)}: {json.dumps(name)}, {json.dumps(calls.arguments_key)}: "


def object_pattern(calls: ObjectCalls, names: Sequence[str]) -> str:
    """The same as a regular expression, for any of these functions: with any whitespace, and with what else models
    write before the name.
    """
    quoted = f"({'|'.join(escaped(json.dumps(name)) for name in names)})"
    if calls.keyed:
        return _spaced("", r"\{", quoted, ":", "")
    kind = _spaced('("type"', ":", '"function"', ",", ")?")
    number = _spaced(f'("{calls.number_key}"', ":", f'"{_ID}"', ",", ")?") if calls.number_key else ""
    return _spaced(
        "", r"\{", kind + number, f'"{calls.name_key}"', ":", quoted, ",", f'"{calls.arguments_key}"', ":", ""
    )


def _spaced(*parts: str) -> str:
    return _SPACE.join(parts)


def _arguments(schema: dict[str, Any], param: str) -> Constraint:
    """The schema of a function's arguments: an object whether it says so or not, with no more than what it names."""
    closed = {} if schema.keys() & _OPEN or "properties" not in schema else {"additionalProperties": False}
    return Constraint("json_schema", json.dumps({"type": "object", **closed, **schema}), param)


# ── arguments one by one ─────────────────────────────────────────────────────────────────────────────────────────────


def _properties(tool: Tool, param: str) -> list[tuple[str, Any, bool, str]]:
    """The arguments one by one: name, schema, whether it must be there, and where that is said."""
    properties, required = tool.parameters.get("properties", {}), tool.parameters.get("required", [])
    if not _names_all(properties, required):
        raise InvalidRequest("this model needs every argument named among the properties", param=param)
    if len(properties) > _MOST_MEMBERS:
        raise InvalidRequest(f"this model cannot be given more than {_MOST_MEMBERS} arguments", param=param)
    if odd := [name for name in properties if not _PLAIN_NAME.fullmatch(name)]:
        raise InvalidRequest(f"this model cannot write an argument named {odd[0]!r}", param=param)
    if more := tool.parameters.keys() & _NOT_BY_ONE:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes arguments", param=param)
    return [(name, schema, name in required, f"{param}.properties.{name}") for name, schema in properties.items()]


def _names_all(properties: Any, required: Any) -> bool:
    """Whether these are properties, among which there are all that are required."""
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _members(grammar: Lark, members: Sequence[tuple[str, bool]], comma: str = "") -> str:
    """Members of an object in their order, with or without those that are not needed, and with commas between them."""
    firsts: list[str] = []
    if comma:
        members = [(grammar.shared("member", member), needed) for member, needed in members]
    for at, (member, needed) in enumerate(members):
        later = [f"{comma} {other}" if must else f"({comma} {other})?" for other, must in members[at + 1 :]]
        # Whichever comes first has no comma before it.
        if not comma:
            return " ".join([member if needed else f"({member})?", *later])
        firsts.append(" ".join([member, *later]))
        if needed:
            return f"({' | '.join(firsts)})"
    return f"({' | '.join(firsts)})?" if firsts else ""


def _json(schema: Any, tool: Tool, param: str) -> Constraint:
    """A value as JSON."""
    shared = {name: tool.parameters[name] for name in tool.parameters.keys() & {"$defs", "definitions"}}
    source = {**shared, **schema} if isinstance(schema, dict) else schema
    return Constraint("json_schema", json.dumps(source), param)


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _text(grammar: Lark, schema: Mapping[str, Any], end: str, param: str, *, line: str = "") -> str:
    """A text as it is, and what ends it. One of several may have a line of its own."""
    if more := schema.keys() - _NOTES - {"enum"}:
        raise InvalidRequest(f"{min(more)} cannot be enforced in the way this model writes texts", param=param)
    if "enum" not in schema:
        return grammar.until(end)
    words = [word for word in _words(schema, param) if end not in word]
    if not words:
        raise InvalidRequest("no text satisfies this", param=param)
    return f"{line} {grammar.one_of(words)} {line} {grammar.written(end)}"


def _words(schema: Mapping[str, Any], param: str) -> list[str]:
    """The texts that are allowed, where they are named."""
    if not isinstance(schema["enum"], list):
        raise InvalidRequest("enum must be a list", param=param)
    return [word for word in schema["enum"] if isinstance(word, str)]


def _filled(text: str, spell: Callable[[str], str], kinds: Sequence[str] = ()) -> str:
    """A marker with placeholders."""
    parts = {"{number}": "/[0-9]{1,9}/", "{id}": f"/{_ID}/"}
    if kinds:
        either = " | ".join(_filled(kind, spell) for kind in kinds if kind)
        parts["{kind}"] = f"({either}){'?' * ('' in kinds)}"
    return " ".join(filter(None, (parts.get(part) or spell(part) for part in _PLACEHOLDER.split(text))))


def _tagged(grammar: Lark, calls: TaggedCalls, tool: Tool, param: str, after: str) -> str:
    name = (tool.name + calls.name_end.replace("{name}", tool.name)).removeprefix(after)
    members = _members(
        grammar,
        [
            (_tagged_argument(grammar, calls, name, resolved(schema, tool.parameters), tool, where), needed)
            for name, schema, needed, where in _properties(tool, param)
        ],
    )
    rest = grammar.shared("arguments", f"{members} {grammar.spaced(calls.closing)}")
    return f"{_filled(name, grammar.spaced)} {rest}"


def _tagged_argument(grammar: Lark, calls: TaggedCalls, name: str, schema: Any, tool: Tool, param: str) -> str:
    is_text = _is_text(schema)
    key = grammar.spaced(calls.key_opening + name + calls.key_closing)
    opening = calls.value_opening.replace("{text}", "true" if is_text else "false").replace("{type}", _type(schema))
    if not is_text:
        value = _one_in_python(grammar, schema, grammar.part(_json(schema, tool, param)))
        return f"{key} {grammar.spaced(opening)} {value} {grammar.spaced(calls.value_closing)}"
    # Whatever stands between the marks is the text, but for a line that it may have of its own.
    line = r'"\n"?' if opening.endswith("\n") else ""
    text = _text(grammar, schema, calls.value_closing.strip("\n"), param, line=line)
    after = grammar.spaced("\n") if calls.value_closing.endswith("\n") else ""
    return f"{key} {grammar.written(opening.strip(chr(10)))} {text} {after}"


def _one_in_python(grammar: Lark, schema: Any, value: str) -> str:
    """A value, or the same as Python writes it where that is one word."""
    words = _IN_PYTHON.get(_type(schema)) if isinstance(schema, Mapping) and not schema.keys() - _NOTES else None
    return f"({value} | {grammar.one_of(words)})" if words else value


def _python_value(grammar: Lark, schema: Any, tool: Tool, param: str) -> str:
    """A value as JSON, or as Python writes it where that is a simple matter."""
    schema = resolved(schema, tool.parameters)
    value = grammar.part(_json(schema, tool, param))
    if _is_text(schema) and not schema.keys() - _NOTES:
        return f"({value} | {grammar.shared('TEXT', _PYTHON_TEXT)})"
    if _is_text(schema) and not schema.keys() - _NOTES - {"enum"}:
        words = [f"'{word}'" for word in _words(schema, param) if not set(word) & set("'\\\n")]
        return f"({' | '.join([value, *map(grammar.written, words)])})"
    return _one_in_python(grammar, schema, value)


def _type(schema: Any) -> str:
    type = schema.get("type") if isinstance(schema, Mapping) else None
    return "number" if type == "integer" else type if isinstance(type, str) else "object"


# ── values in values ─────────────────────────────────────────────────────────────────────────────────────────────────


def _braced_value(grammar: Lark, calls: BracedCalls, schema: Any, tool: Tool, param: str, depth: int = 0) -> str:
    """A value with quotation marks of its own and sorted keys, or JSON where its schema says too much for that."""
    text = resolved(schema, tool.parameters)
    if _is_text(text) and not text.keys() - _NOTES - {"enum"}:
        return f"{grammar.written(calls.quote)} {_text(grammar, text, calls.quote, param)}"
    if (items := _items(schema, depth)) is not None:
        item = grammar.shared("item", _braced_value(grammar, calls, items, tool, param, depth + 1))
        return f'"[" ({item} ("," {item})*)? "]"'
    if (properties := _nested_properties(schema, depth)) is not None:
        members = _members(
            grammar,
            [
                (
                    f"{grammar.written(f'{name}:')} {_braced_value(grammar, calls, inner, tool, param, depth + 1)}",
                    needed,
                )
                for name, inner, needed in sorted(properties, key=itemgetter(0))
            ],
            grammar.written(","),
        )
        return f'"{{" {members} "}}"'
    return grammar.part(_json(schema, tool, param))


def _element(grammar: Lark, calls: NestedCalls, name: str, schema: Any, tool: Tool, param: str, depth: int = 0) -> str:
    """A value between tags of this name: with tags in it, or JSON where its schema says too much for that."""
    text, opening = resolved(schema, tool.parameters), grammar.written(calls.opens(name))
    if _is_text(text):
        return f"{opening} {_text(grammar, text, calls.closes(name), param)}"
    if (items := _items(schema, depth)) is not None:
        inside = f"({_element(grammar, calls, 'item', items, tool, param, depth + 1)})*"
    elif (properties := _nested_properties(schema, depth)) is not None:
        inside = _members(
            grammar,
            [
                (_element(grammar, calls, key, inner, tool, param, depth + 1), needed)
                for key, inner, needed in properties
            ],
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
    properties: Any = schema.get("properties")
    required = schema.get("required", [])
    if schema.keys() - _NOTES - _OBJECT - {"additionalProperties"} or not _names_all(properties, required):
        return None
    if len(properties) > _MOST_MEMBERS or not all(_PLAIN_NAME.fullmatch(name) for name in properties):
        return None
    return [(name, inner, name in required) for name, inner in properties.items()]
