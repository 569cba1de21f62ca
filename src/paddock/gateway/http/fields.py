"""The base classes of request bodies: strict types, and tables of what is refused or ignored by name."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from paddock.errors import UnsupportedParameter

Unsupported = Mapping[str, tuple[Any, ...]]


class Fields(BaseModel):
    """A JSON object in a request."""

    # Strict: "0.7" is not a number. No infinities: JSON has none, but some clients write them.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class BodyFields(Fields):
    """A whole body. A class declares its own tables only; those of its base classes apply as well."""

    token_lists: ClassVar[Set[str]] = frozenset()
    """The fields that may hold whole contexts as lists of tokens."""
    unsupported: ClassVar[Unsupported] = {}
    """Fields that are refused by name, because ignoring them would change the answer. Each has the values that request
    nothing, which are accepted.
    """
    lenient_defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of required fields that llama-server does not require (`--lenient`)."""
    without_effect: ClassVar[Set[str]] = frozenset()
    """Fields that are accepted because they do not change the answer."""

    def ignored(self) -> list[str]:
        """Values that were accepted but have no effect, for the header that names ignored fields."""
        return []

    @classmethod
    def without_other_fields(cls, data: dict[str, Any], generation_fields: Set[str]) -> dict[str, Any]:
        """Handle fields that belong to other endpoints that generate."""
        return data

    @model_validator(mode="before")
    @classmethod
    def _apply_tables(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        unsupported, dropped = _tables(cls)
        for name in sorted(data.keys() & unsupported.keys()):
            value = data[name]
            if value is not None and value not in unsupported[name]:
                raise UnsupportedParameter(f"{name!r} is not supported yet", param=name)
        kept = {name: value for name, value in data.items() if name not in dropped}
        return cls.without_other_fields(kept, info.context or frozenset())


class Nothing(BodyFields):
    """An empty object."""


@cache
def _tables(cls: type[BodyFields]) -> tuple[Unsupported, Set[str]]:
    """The unsupported fields, and all fields that are left out of the body, less the fields of the class itself."""
    bases = [base for base in reversed(cls.__mro__) if issubclass(base, BodyFields)]
    merged = {name: neutral for base in bases for name, neutral in base.unsupported.items()}
    unsupported = {name: neutral for name, neutral in merged.items() if name not in cls.model_fields}
    ignored = {name for base in bases for name in base.without_effect} - cls.model_fields.keys()
    return unsupported, unsupported.keys() | ignored
