"""The formats of JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

STANDARD_FORMATS: Final = frozenset({
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
    "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template",
    "uuid",
})  # fmt: skip


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value, itself first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects_in(inner)


def unknown_formats(schema: Any) -> Iterator[str]:
    """Formats in a schema that the standard does not define. They are annotations and constrain nothing."""
    names = (part.get("format") for part in objects_in(schema))
    return (name for name in names if isinstance(name, str) and name not in STANDARD_FORMATS)
