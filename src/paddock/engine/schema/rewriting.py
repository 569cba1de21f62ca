"""Rewrites keywords that llguidance does not support. Exactly the same instances satisfy the result.

A `oneOf` whose branches exclude each other becomes `anyOf`. A dependency becomes a choice between "the property is
absent" and "the dependency holds". An `if` over the values of one property becomes a choice between its values.
Keywords that cannot be rewritten with certainty stay.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

from paddock.engine.schema.facts import OBJECT, Document, Schema, TooCostly, contains
from paddock.types import STANDARD_FORMATS, objects_in

_MOST_BRANCHES: Final = 256
"""The limit for one `oneOf`, because each pair of branches is compared."""
_MOST_CHOICES: Final = 256
"""The limit for the product of all choices: a grammar may have to consider every combination."""
_MOST_EXACTLY_ONE: Final = 8

_ONE: Final = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED: Final = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
_SAME_INSTANCE: Final = ("allOf", "anyOf", "dependentSchemas", "else", "oneOf", "then")
"""Keywords whose schemas apply to the same instance."""
_REWRITTEN: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"}
)
_A_YEAR: Final = "^(000[1-9]|00[1-9]|0[1-9]|[1-9])"
_ANNOTATIONS: Final = frozenset({"title", "description", "$comment", "examples", "default"})


def rewritten(schema: Schema) -> Schema:
    """An equivalent schema. The given one is not changed."""
    references = [part["$ref"] for part in objects_in(schema) if isinstance(part.get("$ref"), str)]
    if any(step in _REWRITTEN for reference in references for step in reference.split("/")):
        return _without_unknown_formats(schema)  # a referenced part must stay in its place
    try:
        return _Rewriting(schema).schema(_without_unknown_formats(schema), ())
    except TooCostly:
        return _without_unknown_formats(schema)


class _Rewriting:
    def __init__(self, root: Schema) -> None:
        self._document = Document(root)
        self._choices = 1

    def schema(self, schema: Schema, context: tuple[Schema, ...]) -> Schema:
        """`context`: further schemas that the same instance satisfies."""
        if not isinstance(schema, dict):
            return schema
        self._document.step()
        given = (*context, schema)
        new = _map_subschemas(schema, lambda key, inner: self.schema(inner, given if key in _SAME_INSTANCE else ()))
        if isinstance(new.get("oneOf"), list) and (choice := self._one_of(schema["oneOf"], new["oneOf"], given)):
            del new["oneOf"]
            new = _and(new, choice)
        for name in ("dependencies", "dependentRequired", "dependentSchemas"):
            if isinstance(new.get(name), dict):
                new = self._dependencies(new, name)
        if "if" in new and (branches := self._condition(new, given)) is not None and self._affordable(len(branches)):
            rest = {key: value for key, value in new.items() if key not in ("if", "then", "else")}
            new = _and(rest, {"anyOf": branches})
        return new

    def _affordable(self, choices: int) -> bool:
        if self._choices * choices > _MOST_CHOICES:
            return False
        self._choices *= max(choices, 1)
        return True

    # ── oneOf ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _one_of(self, plain: list[Schema], new: list[Schema], given: tuple[Schema, ...]) -> dict[str, Any] | None:
        if self._exclude_each_other(plain, given):
            return {"anyOf": new}
        return self._exactly_one_present(plain, given)

    def _exclude_each_other(self, branches: list[Schema], given: tuple[Schema, ...]) -> bool:
        if len(branches) > _MOST_BRANCHES:
            return False
        return all(self._document.is_empty([*given, *pair]) for pair in combinations(branches, 2))

    def _exactly_one_present(self, branches: list[Schema], given: tuple[Schema, ...]) -> dict[str, Any] | None:
        """Rewrite branches that each only require one property."""
        names = [_only_required(branch) for branch in branches]
        if any(name is None for name in names) or len(set(names)) < len(names) or len(names) > _MOST_EXACTLY_ONE:
            return None
        if not self._is_object(given) or not self._affordable(len(names)):
            return None
        absent = [{other: False for other in names if other != name} for name in names]
        return {"anyOf": [{"required": [n], "properties": others} for n, others in zip(names, absent, strict=True)]}

    # ── dependencies ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _dependencies(self, schema: dict[str, Any], keyword: str) -> dict[str, Any]:
        """Instances other than objects have no properties, so the first choice holds for them."""
        given = schema[keyword]
        if not all(isinstance(needed, dict | list | bool) for needed in given.values()):
            return schema
        if not self._affordable(2 ** min(len(given), 16)):
            return schema
        new = {key: value for key, value in schema.items() if key != keyword}
        for name, needed in given.items():
            if isinstance(needed, list):
                present = {"required": [name, *(n for n in needed if n != name)]}
            else:
                present = _and({"required": [name]}, needed)
            new = _and(new, {"anyOf": [_absent(name), present]})
        return new

    # ── if, then, else ───────────────────────────────────────────────────────────────────────────────────────────────

    def _condition(self, schema: dict[str, Any], given: tuple[Schema, ...]) -> list[Schema] | None:
        """Branches that exclude each other, or None if the condition cannot be rewritten."""
        condition, then, otherwise = schema["if"], schema.get("then", True), schema.get("else", True)
        if isinstance(condition, bool):
            return [then if condition else otherwise]
        if not isinstance(condition, dict) or not self._is_object(given):
            return None
        about = condition.keys() - _ANNOTATIONS
        if about <= {"required", "type"} and (name := _only_required(condition)) is not None:
            return [_and({"required": [name]}, then), _and(_absent(name), otherwise)]
        return (
            self._over_values(condition, then, otherwise, given)
            if about <= {"properties", "required", "type"}
            else None
        )

    def _over_values(
        self, condition: dict[str, Any], then: Schema, otherwise: Schema, given: tuple[Schema, ...]
    ) -> list[Schema] | None:
        properties, required = condition.get("properties"), condition.get("required", [])
        if not isinstance(properties, dict) or len(properties) != 1 or condition.get("type", "object") != "object":
            return None
        ((name, wanted),) = properties.items()
        if required not in ([], [name]) or not isinstance(wanted, dict):
            return None
        facts = self._document.facts(given)
        possible = self._document.domain(facts.of_property(name))
        if possible is None or not wanted.keys() - _ANNOTATIONS <= {"const", "enum"}:
            return None
        if (matching := self._document.facts([wanted]).values) is None:
            return None
        branches = []
        for values, consequence in (
            ([value for value in possible if contains(matching, value)], then),
            ([value for value in possible if not contains(matching, value)], otherwise),
        ):
            if values:
                branches.append(_and({"properties": {name: {"enum": values}}, "required": [name]}, consequence))
        if name not in facts.required:
            branches.append(_and(_absent(name), otherwise if required else then))
        return branches

    def _is_object(self, given: tuple[Schema, ...]) -> bool:
        return self._document.facts(given).types <= OBJECT


def _only_required(schema: Schema) -> str | None:
    """The one property that a schema requires, if it has no other constraint on objects."""
    if not isinstance(schema, dict) or schema.keys() - _ANNOTATIONS - {"type"} != {"required"}:
        return None
    names = schema["required"]
    if schema.get("type", "object") != "object" or not isinstance(names, list) or len(names) != 1:
        return None
    return names[0] if isinstance(names[0], str) else None


def _absent(name: str) -> dict[str, Any]:
    return {"properties": {name: False}}


def _and(schema: dict[str, Any], other: Schema) -> dict[str, Any]:
    """The conjunction of both."""
    if other is True:
        return schema
    parts = schema.get("allOf", [])
    return {**schema, "allOf": [*(parts if isinstance(parts, list) else []), other]}


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def without_year_zero(schema: Schema) -> Schema:
    """The schema with a `pattern` for dates. RFC 3339 allows the year 0000, but the dates of most languages do not."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("format") in ("date", "date-time") and "pattern" not in part:
            return {**part, "pattern": _A_YEAR}
        return part

    return _each(schema, change)


def _without_unknown_formats(schema: Schema) -> Schema:
    """The schema without formats that the standard does not define: they are annotations. Standard formats stay."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        name = part.get("format")
        if isinstance(name, str) and name not in STANDARD_FORMATS:
            return {key: value for key, value in part.items() if key != "format"}
        return part

    return _each(schema, change)


def _each(schema: Schema, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Schema:
    """The schema with `change` applied to every schema in it."""
    if not isinstance(schema, dict):
        return schema
    return change(_map_subschemas(schema, lambda _, inner: _each(inner, change)))


def _map_subschemas(schema: dict[str, Any], change: Callable[[str, Schema], Schema]) -> dict[str, Any]:
    """The schema with its direct subschemas changed. `change` gets the keyword and the subschema."""

    def changed(key: str, value: Any) -> Any:
        if isinstance(value, list) and key in _LISTS:
            return [change(key, inner) for inner in value]
        if isinstance(value, dict) and key in _NAMED:
            return {name: change(key, inner) for name, inner in value.items()}
        return change(key, value) if key in _ONE else value

    return {key: changed(key, value) for key, value in schema.items()}
