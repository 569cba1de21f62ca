"""Facts about the instances of a schema. A fact may be missed, but none is ever false."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final

from paddock.types import objects_in

Schema = Any
"""A JSON schema: an object, true or false."""

# `number` is split into two kinds that exclude each other.
EVERY_TYPE: Final = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
OBJECT: Final = frozenset({"object"})
_BOOLEANS: Final = (False, True)
_TYPES: Final = {
    python: frozenset({name})
    for python, name in ((NoneType, "null"), (bool, "boolean"), (int, "integer"), (str, "string"), (list, "array"))
}
_DEEPEST: Final = 16
_MOST_STEPS: Final = 50_000
_MOST_DIGITS: Final = 9
"""Of an index in a pointer. Python refuses to convert thousands of digits."""


class TooCostly(Exception):
    """The analysis needs too many steps. Nothing is known then."""


@dataclass
class Facts:
    """Facts about an instance that satisfies several schemas."""

    types: frozenset[str] = EVERY_TYPE
    values: list[Any] | None = None
    """All possible values, if `const` or `enum` lists them."""
    required: set[str] = field(default_factory=set)
    objects: list[dict[str, Any]] = field(default_factory=list)
    """The schemas that constrain properties."""

    def of_property(self, name: str) -> list[Schema]:
        """The schemas that the property satisfies if it is present."""
        found = []
        for part in self.objects:
            properties = part.get("properties")
            if isinstance(properties, dict) and name in properties:
                found.append(properties[name])
            elif "additionalProperties" in part and not part.get("patternProperties"):
                found.append(part["additionalProperties"])
        return found


class Document:
    """One schema document. It resolves references and counts the steps of the analysis."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._steps = 0
        # An `$id` inside changes the base, so that `#/…` may refer to another place.
        self._is_plain = not any("$id" in part or "id" in part for part in list(objects_in(root))[1:])

    def step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise TooCostly

    def resolve(self, reference: Any) -> Schema:
        """The schema at a local pointer. Not found: true, which every instance satisfies."""
        if not isinstance(reference, str) or not self._is_plain or "%" in reference:
            return True
        if reference != "#" and not reference.startswith("#/"):
            return True
        found = self._root
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and len(key) <= _MOST_DIGITS and int(key) < len(found):
                found = found[int(key)]
            else:
                return True
        return found

    def facts(self, schemas: Sequence[Schema]) -> Facts:
        facts = Facts()
        for schema in schemas:
            self._add(facts, schema, _DEEPEST)
        return facts

    def _add(self, facts: Facts, schema: Schema, depth: int) -> None:
        self.step()
        if schema is False:
            facts.types = frozenset()
        if not isinstance(schema, dict) or depth == 0:
            return
        if "$ref" in schema:
            # Keywords beside `$ref` count only in newer drafts.
            self._add(facts, self.resolve(schema["$ref"]), depth - 1)
            return
        facts.types &= _types(schema.get("type"))
        for values in _listed(schema):
            facts.types &= frozenset(kind for value in values for kind in type_of(value))
            known = facts.values
            facts.values = values if known is None else [value for value in known if contains(values, value)]
        if isinstance(required := schema.get("required"), list):
            facts.required |= {name for name in required if isinstance(name, str)}
        if "properties" in schema or "additionalProperties" in schema:
            facts.objects.append(schema)
        if isinstance(parts := schema.get("allOf"), list):
            for part in parts:
                self._add(facts, part, depth - 1)

    # ── conclusions ───────────────────────────────────────────────────────────────────────────────────────

    def is_empty(self, schemas: Sequence[Schema], depth: int = _DEEPEST) -> bool:
        """Whether certainly no instance satisfies all of the schemas."""
        self.step()
        if depth == 0:
            return False
        facts = self.facts(schemas)
        if not facts.types:
            return True
        if facts.values is not None:
            return all(self._refuses(facts, value, depth - 1) for value in facts.values)
        if facts.types != OBJECT:
            return False
        return any(self.is_empty(facts.of_property(name), depth - 1) for name in facts.required)

    def domain(self, schemas: Sequence[Schema]) -> list[Any] | None:
        """The values that may satisfy all of the schemas. None: they cannot be listed."""
        facts = self.facts(schemas)
        if facts.values is not None:
            return [value for value in facts.values if not self._refuses(facts, value, _DEEPEST)]
        if facts.types <= {"boolean", "null"}:
            return [*(_BOOLEANS if "boolean" in facts.types else ()), *([None] if "null" in facts.types else ())]
        return None

    def _refuses(self, facts: Facts, value: Any, depth: int) -> bool:
        """Whether the value certainly does not satisfy the facts."""
        self.step()
        if not facts.types.intersection(type_of(value)):
            return True
        if facts.values is not None and not contains(facts.values, value):
            return True
        if not isinstance(value, dict) or depth == 0:
            return False
        if facts.required - value.keys():
            return True
        return any(
            self._refuses(self.facts(facts.of_property(name)), inner, depth - 1) for name, inner in value.items()
        )


def _types(given: Any) -> frozenset[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return EVERY_TYPE
    kinds = frozenset(kind for name in names for kind in (("integer", "fraction") if name == "number" else (name,)))
    return kinds if kinds <= EVERY_TYPE else EVERY_TYPE


def _listed(schema: dict[str, Any]) -> Iterator[list[Any]]:
    if "const" in schema:
        yield [schema["const"]]
    if isinstance(schema.get("enum"), list):
        yield schema["enum"]


def type_of(value: Any) -> frozenset[str]:
    """The types that a value may have."""
    if isinstance(value, float):
        # 1.0 is an integer in newer drafts only.
        whole = not math.isfinite(value) or value.is_integer()
        return frozenset({"integer", "fraction"} if whole else {"fraction"})
    return _TYPES.get(type(value), OBJECT)


def contains(values: Sequence[Any], value: Any) -> bool:
    return any(equal(one, value) for one in values)


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)
