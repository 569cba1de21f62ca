"""Validates values against a JSON schema, for the keywords that are usual in the parameters of functions.

An unknown keyword makes a value invalid, so that a positive result is reliable. `pattern` is unknown on purpose: a
regular expression can take exponential time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paddock.text.reply.schemas import ANNOTATIONS, resolve

_MOST_CHECKS = 10_000
_IGNORED = ANNOTATIONS | {
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "format",
    "readOnly",
    "writeOnly",
    "strict",
}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: not _is_number(value) or value >= bound,
    "maximum": lambda value, bound: not _is_number(value) or value <= bound,
    "exclusiveMinimum": lambda value, bound: not _is_number(value) or value > bound,
    "exclusiveMaximum": lambda value, bound: not _is_number(value) or value < bound,
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda value, bound: not isinstance(value, str) or len(value) <= bound,
    "minItems": lambda value, bound: not isinstance(value, list) or len(value) >= bound,
    "maxItems": lambda value, bound: not isinstance(value, list) or len(value) <= bound,
    "minProperties": lambda value, bound: not isinstance(value, dict) or len(value) >= bound,
    "maxProperties": lambda value, bound: not isinstance(value, dict) or len(value) <= bound,
}


def is_valid(value: Any, schema: Any) -> bool:
    """Whether the value certainly matches the schema."""
    try:
        return _Validator(schema).is_valid(value, schema)
    except (_Unsupported, RecursionError, TypeError, ValueError, OverflowError):
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
        match key:
            case "type":
                return any(_TYPES[name](value) for name in ([expected] if isinstance(expected, str) else expected))
            case "const":
                return _equal(value, expected)
            case "enum":
                return any(_equal(value, one) for one in expected)
            case "required":
                return not isinstance(value, dict) or set(expected) <= value.keys()
            case "properties":
                return not isinstance(value, dict) or all(
                    self.is_valid(value[name], inner) for name, inner in expected.items() if name in value
                )
            case "additionalProperties":
                known = schema.get("properties", {})
                return not isinstance(value, dict) or all(
                    self.is_valid(inner, expected) for name, inner in value.items() if name not in known
                )
            case "items":
                if "prefixItems" in schema:
                    raise _Unsupported
                return not isinstance(value, list) or all(self.is_valid(inner, expected) for inner in value)
            case "allOf":
                return all(self.is_valid(value, inner) for inner in expected)
            case "anyOf":
                return True in [self.is_valid(value, inner) for inner in expected]  # check each: one may be unsupported
            case "oneOf":
                return [self.is_valid(value, inner) for inner in expected].count(True) == 1
        if key in _BOUNDS and _is_number(expected):
            return _BOUNDS[key](value, expected)
        raise _Unsupported


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(one: Any, other: Any) -> bool:
    """JSON equality: true is not 1. Inside lists and objects, 1 and 1.0 differ."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict | list) or isinstance(other, dict | list):
        return repr(one) == repr(other)
    return bool(one == other)
