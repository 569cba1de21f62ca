"""Looks up types and nested schemas in a JSON schema, one level at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "example", "deprecated"})
"""Keywords that do not restrict a value."""
_MOST_REFERENCES = 32


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
