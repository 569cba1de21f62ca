"""What a schema says of a value, one level at a time: its type, and the schemas of what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTES = frozenset({"title", "description", "default", "examples", "example", "deprecated"})
"""What says no more of a value than what it is called."""
_MOST_REFERENCES = 32


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema itself where it is a reference into its root's definitions; any other reference stays."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping) or schema.keys() - NOTES != {"$ref"} or not isinstance(schema["$ref"], str):
            return schema
        kind, _, name = schema["$ref"].removeprefix("#/").partition("/")
        definitions = root.get(kind) if kind in ("$defs", "definitions") else None
        if not isinstance(definitions, Mapping) or name not in definitions:
            return schema
        schema = definitions[name]
    return schema


def has_type(schema: Any, type: str, root: Mapping[str, Any]) -> bool:
    schema = resolved(schema, root)
    return isinstance(schema, Mapping) and schema.get("type") == type


def item_schema(schema: Any, root: Mapping[str, Any]) -> Any:
    """Of the items of an array."""
    schema = resolved(schema, root)
    return schema.get("items", {}) if isinstance(schema, Mapping) else {}


def member_schema(schema: Any, name: str, root: Mapping[str, Any]) -> Any:
    """Of a member of an object."""
    schema = resolved(schema, root)
    members = schema.get("properties") if isinstance(schema, Mapping) else None
    return members.get(name, {}) if isinstance(members, Mapping) else {}
