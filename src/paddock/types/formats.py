"""The names of `format` that JSON Schema defines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

STANDARD_FORMATS: Final = frozenset({
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
    "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template",
    "uuid",
})  # fmt: skip


def unknown_formats(schema: Any) -> Iterator[str]:
    """Formats in a schema that the standard does not define. They are annotations and constrain nothing."""
    if isinstance(schema, dict) and isinstance(name := schema.get("format"), str) and name not in STANDARD_FORMATS:
        yield name
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from unknown_formats(inner)
