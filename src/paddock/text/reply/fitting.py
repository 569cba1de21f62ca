"""Whether a value satisfies a schema, for the keywords that functions' parameters are usually described with.

A keyword that is not known here means no: whoever asks must be able to rely on a yes. Patterns are not tried, because
an expression can take for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paddock.text.reply.schemas import NOTES, resolved

_MOST_STEPS = 10_000
_IGNORED = NOTES | {"$schema", "$id", "$comment", "$defs", "definitions", "format", "readOnly", "writeOnly", "strict"}
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


def fits(value: Any, schema: Any) -> bool:
    """Whether the value certainly satisfies the schema."""
    try:
        return _Check(schema).fits(value, schema)
    except (_Unknown, RecursionError, TypeError, ValueError, OverflowError):
        return False


class _Unknown(Exception):
    """It cannot be told."""


class _Check:
    def __init__(self, root: Any) -> None:
        self._root = root if isinstance(root, Mapping) else {}
        self._steps = 0

    def fits(self, value: Any, schema: Any) -> bool:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _Unknown
        if isinstance(schema, bool):
            return schema
        schema = resolved(schema, self._root)
        if not isinstance(schema, Mapping):
            raise _Unknown
        return all(self._keeps(value, key, schema[key], schema) for key in schema if key not in _IGNORED)

    def _keeps(self, value: Any, key: str, said: Any, schema: Mapping[str, Any]) -> bool:
        match key:
            case "type":
                return any(_TYPES[name](value) for name in ([said] if isinstance(said, str) else said))
            case "const":
                return _equal(value, said)
            case "enum":
                return any(_equal(value, one) for one in said)
            case "required":
                return not isinstance(value, dict) or set(said) <= value.keys()
            case "properties":
                return not isinstance(value, dict) or all(
                    self.fits(value[name], inner) for name, inner in said.items() if name in value
                )
            case "additionalProperties":
                known = schema.get("properties", {})
                return not isinstance(value, dict) or all(
                    self.fits(inner, said) for name, inner in value.items() if name not in known
                )
            case "items":
                if "prefixItems" in schema:
                    raise _Unknown
                return not isinstance(value, list) or all(self.fits(inner, said) for inner in value)
            case "allOf":
                return all(self.fits(value, inner) for inner in said)
            case "anyOf":
                return True in [self.fits(value, inner) for inner in said]  # each is asked: one may be unknown
            case "oneOf":
                return [self.fits(value, inner) for inner in said].count(True) == 1
        if key in _BOUNDS and _is_number(said):
            return _BOUNDS[key](value, said)
        raise _Unknown


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(one: Any, other: Any) -> bool:
    """As JSON has it, on one level: true is not 1. What is inside lists and objects must be of the same types."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict | list) or isinstance(other, dict | list):
        return repr(one) == repr(other)
    return bool(one == other)
