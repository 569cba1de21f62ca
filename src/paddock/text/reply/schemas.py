"""JSON schemas of functions: lookups one level at a time, and validation of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "example", "deprecated"})
"""Keywords that do not restrict a value."""
_IGNORED = ANNOTATIONS | {"$schema", "$id", "$comment", "$defs", "definitions", "format"}
_IGNORED |= {"readOnly", "writeOnly", "strict"}
_MOST_REFERENCES = 32
_MOST_CHECKS = 10_000
_TYPES: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}
_SIZES = {"Length": "string", "Items": "array", "Properties": "object"}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", ge),
    "maximum": ("number", le),
    "exclusiveMinimum": ("number", gt),
    "exclusiveMaximum": ("number", lt),
    **{f"min{size}": (type, ge) for size, type in _SIZES.items()},
    **{f"max{size}": (type, le) for size, type in _SIZES.items()},
}
"""Keywords that limit a number or a size: the type that they apply to, and how it compares with the limit."""
_APPLIES_TO = {"required": dict, "properties": dict, "additionalProperties": dict, "items": list}


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follow references into the definitions of the root. Other references stay."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or schema.keys() - ANNOTATIONS != {"$ref"}:
            return schema
        kind, _, name = reference.removeprefix("#/").partition("/")
        definitions = root.get(kind) if kind in ("$defs", "definitions") else None
        if not isinstance(definitions, Mapping) or name not in definitions:
            return schema
        schema = definitions[name]
    return schema


def has_type(schema: Any, type: str, root: Mapping[str, Any]) -> bool:
    return bool(_keyword(schema, "type", root) == type)


def item_schema(schema: Any, root: Mapping[str, Any]) -> Any:
    items = _keyword(schema, "items", root)
    return {} if items is None else items


def member_schema(schema: Any, name: str, root: Mapping[str, Any]) -> Any:
    members = _keyword(schema, "properties", root)
    return members.get(name, {}) if isinstance(members, Mapping) else {}


def _keyword(schema: Any, name: str, root: Mapping[str, Any]) -> Any:
    schema = resolve(schema, root)
    return schema.get(name) if isinstance(schema, Mapping) else None


# ── validation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def is_valid(value: Any, schema: Any) -> bool:
    """Whether the value certainly matches the schema.

    An unknown keyword makes a value invalid, so that a positive result is reliable. `pattern` is unknown on purpose: a
    regular expression can take exponential time.
    """
    try:
        return _Validator(schema).is_valid(value, schema)
    except (_Unsupported, RecursionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False


class _Unsupported(Exception):
    """The schema has a keyword that is not supported here."""


class _Validator:
    def __init__(self, root: Any) -> None:
        self._root = root if isinstance(root, Mapping) else {}
        self._checks = 0

    def is_valid(self, value: Any, schema: Any) -> bool:
        self._checks += 1
        if self._checks > _MOST_CHECKS:
            raise _Unsupported
        if isinstance(schema, bool):
            return schema
        schema = resolve(schema, self._root)
        if not isinstance(schema, Mapping):
            raise _Unsupported
        return all(self._matches(value, key, schema[key], schema) for key in schema if key not in _IGNORED)

    def _matches(self, value: Any, key: str, expected: Any, schema: Mapping[str, Any]) -> bool:
        if key in _APPLIES_TO and not isinstance(value, _APPLIES_TO[key]):
            return True
        match key:
            case "type":
                return any(_is(value, name) for name in ([expected] if isinstance(expected, str) else expected))
            case "const":
                return _equal(value, expected)
            case "enum":
                return any(_equal(value, one) for one in expected)
            case "required":
                return bool(set(expected) <= value.keys())
            case "properties":
                return all(self.is_valid(value[name], inner) for name, inner in expected.items() if name in value)
            case "additionalProperties":
                others = value.keys() - schema.get("properties", {}).keys()
                return all(self.is_valid(value[name], expected) for name in others)
            case "items" if "prefixItems" not in schema:
                return all(self.is_valid(inner, expected) for inner in value)
            case "allOf":
                return all(self.is_valid(value, inner) for inner in expected)
            case "anyOf":
                return True in [self.is_valid(value, inner) for inner in expected]  # check each: one may be unsupported
            case "oneOf":
                return [self.is_valid(value, inner) for inner in expected].count(True) == 1
        if key in _LIMITS and _is(expected, "number"):
            type, compare = _LIMITS[key]
            return not _is(value, type) or compare(value if type == "number" else len(value), expected)
        raise _Unsupported


def _is(value: Any, type: str) -> bool:
    if type == "integer":
        return _is(value, "number") and bool(value == int(value))
    return isinstance(value, bool) == (type == "boolean") and isinstance(value, _TYPES[type])


def _equal(one: Any, other: Any) -> bool:
    """JSON equality: true is not 1. Inside lists and objects, 1 and 1.0 differ."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict | list) or isinstance(other, dict | list):
        return repr(one) == repr(other)
    return bool(one == other)
