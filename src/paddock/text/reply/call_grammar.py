"""Grammar of the calls of one function. A shape combines the parts that it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paddock.errors import InvalidRequest
from paddock.text.reply.lark import LarkBuilder
from paddock.text.reply.schemas import ANNOTATIONS, resolve
from paddock.types import Constraint, Tool

_UNRESTRICTED = ANNOTATIONS | {"type"}
# Keywords that restrict several arguments together.
_JOINT = frozenset(
    {"$ref", "anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"minProperties", "maxProperties", "propertyNames", "enum", "const"}
)
# Keywords that may allow further properties.
_OPEN = frozenset({"additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf", "if"})
_OBJECT = frozenset({"properties", "required", "$defs", "definitions"})
_PLAIN_NAME = re.compile(r"[\w.$-]+")
_PYTHON_CONSTANTS = {"boolean": ("True", "False"), "null": ("None",)}
_MOST_ARGUMENTS = 100
_DEEPEST = 8
"""Below this depth, nested values are JSON."""


class Argument(NamedTuple):
    name: str
    schema: Any
    required: bool
    param: str
    """The path of the schema in the request."""


class FunctionGrammar:
    """Writes the grammar of a function's arguments as Lark expressions."""

    def __init__(self, lark: LarkBuilder, tool: Tool, index: int) -> None:
        self.lark = lark
        self.name = tool.name
        self.index = index
        self._schema = tool.parameters
        self._param = f"tools[{index}].function.parameters"

    def resolve(self, schema: Any) -> Any:
        return resolve(schema, self._schema)

    def json_arguments(self) -> str:
        """All arguments as one JSON object. Properties that the schema does not name are not allowed."""
        closed = {} if self._schema.keys() & _OPEN or "properties" not in self._schema else _NO_MORE
        source = json.dumps({"type": "object", **closed, **self._schema})
        return self.lark.part(Constraint("json_schema", source, self._param))

    def json_value(self, schema: Any, param: str) -> str:
        definitions = {name: self._schema[name] for name in self._schema.keys() & {"$defs", "definitions"}}
        source = {**definitions, **schema} if isinstance(schema, dict) else schema
        return self.lark.part(Constraint("json_schema", json.dumps(source), param))

    def text(self, schema: Mapping[str, Any], end: str, param: str, *, line: str = "") -> str:
        """A string as plain text, up to and including `end`. `line` is allowed around one value of an enum."""
        if more := schema.keys() - _UNRESTRICTED - {"enum"}:
            raise InvalidRequest(f"this model does not support {min(more)} for strings in arguments", param=param)
        if "enum" not in schema:
            return self.lark.until(end)
        values = [value for value in enum_strings(schema, param) if end not in value]
        if not values:
            raise InvalidRequest("this model supports none of the strings in enum", param=param)
        return f"{line} {self.lark.one_of(values)} {line} {self.lark.literal(end)}"

    def or_python_constant(self, schema: Any, value: str) -> str:
        """The value, or the same constant in Python. Some templates print values as Python does."""
        is_constant = isinstance(schema, Mapping) and not schema.keys() - _UNRESTRICTED
        constants = _PYTHON_CONSTANTS.get(type_name(schema)) if is_constant else None
        return f"({value} | {self.lark.one_of(constants)})" if constants else value

    def arguments(self) -> list[Argument]:
        """The arguments, for shapes that write them one by one."""
        properties, required = self._schema.get("properties", {}), self._schema.get("required", [])
        param = self._param
        if not _has_all(properties, required):
            raise InvalidRequest("this model needs a description of every required argument in properties", param=param)
        if (count := len(properties)) > _MOST_ARGUMENTS:
            raise InvalidRequest(f"this model supports {_MOST_ARGUMENTS} arguments; there are {count}", param=param)
        if odd := [name for name in properties if not _PLAIN_NAME.fullmatch(name)]:
            raise InvalidRequest(f"this model does not support an argument named {odd[0]!r}", param=param)
        if joint := self._schema.keys() & _JOINT:
            raise InvalidRequest(f"this model does not support {min(joint)} for arguments", param=param)
        return [
            Argument(name, schema, name in required, f"{param}.properties.{name}")
            for name, schema in properties.items()
        ]

    def members(self, arguments: Sequence[Argument], write: Callable[[Argument], str], *, separator: str = "") -> str:
        """Arguments in their order, without or with those that are not required."""
        members = [(write(argument), argument.required) for argument in arguments]
        if not separator:
            return " ".join(member if required else f"({member})?" for member, required in members)
        members = [(self.lark.shared("member", member), required) for member, required in members]
        firsts: list[str] = []
        for at, (member, required) in enumerate(members):
            later = [f"{separator} {other}" if must else f"({separator} {other})?" for other, must in members[at + 1 :]]
            # The first member has no separator before it.
            firsts.append(" ".join([member, *later]))
            if required:
                return f"({' | '.join(firsts)})"
        return f"({' | '.join(firsts)})?" if firsts else ""


_NO_MORE = {"additionalProperties": False}


def is_string(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def is_plain_string(schema: Any, *, enum: bool) -> bool:
    """Whether the schema is a string without further restrictions, but for an enum if that is allowed."""
    return is_string(schema) and not schema.keys() - _UNRESTRICTED - ({"enum"} if enum else set())


def enum_strings(schema: Mapping[str, Any], param: str) -> list[str]:
    if not isinstance(schema["enum"], list):
        raise InvalidRequest("enum must be a list", param=param)
    return [value for value in schema["enum"] if isinstance(value, str)]


def type_name(schema: Any) -> str:
    type = schema.get("type") if isinstance(schema, Mapping) else None
    return "number" if type == "integer" else type if isinstance(type, str) else "object"


def nested_items(schema: Any, depth: int) -> Any:
    """The schema of an array's items, if the array has no other restriction."""
    if not isinstance(schema, Mapping) or schema.get("type") != "array" or depth > _DEEPEST:
        return None
    items = schema.get("items")
    return items if isinstance(items, Mapping) and not schema.keys() - _UNRESTRICTED - {"items"} else None


def nested_members(schema: Any, depth: int, param: str) -> list[Argument] | None:
    """The members of an object, if the object has no other restriction."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object" or depth > _DEEPEST:
        return None
    properties: Any = schema.get("properties")
    required = schema.get("required", [])
    if schema.keys() - _UNRESTRICTED - _OBJECT - {"additionalProperties"} or not _has_all(properties, required):
        return None
    if len(properties) > _MOST_ARGUMENTS or not all(_PLAIN_NAME.fullmatch(name) for name in properties):
        return None
    return [Argument(name, inner, name in required, param) for name, inner in properties.items()]


def _has_all(properties: Any, required: Any) -> bool:
    """Whether both are well formed and all required properties are described."""
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)
