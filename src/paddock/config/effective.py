"""The effective configuration as a flat list: every key, its value, and where the value comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paddock.config.fields import Section
from paddock.config.loading import Loaded
from paddock.config.sources import Source, variable_of

MASK = "***"
_SECRET = re.compile(r"((^|_)(keys?|hash|token|secret|password)|^headers)$")


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    key: str
    """Dotted, with the name of a model, key or replica: `model_manager.models.NAME.n_ctx`."""
    value: Any
    """A JSON value. Secrets are masked."""
    setting: str
    """The key of the setting that the value is a part of: `model_manager.models`."""
    given: Source | None
    """None for a default."""

    def source(self, flags: Mapping[str, str]) -> dict[str, str]:
        """`source` and, except for a default, `from`: the file, variable or flag. `flags` maps settings to flags."""
        if self.given is None:
            return {"source": "default"}
        where, variable = self.given.where, variable_of(self.setting)
        names = {
            "file": where,
            "dotenv": f"{where} {variable}",
            "environment": variable,
            "flag": flags.get(self.setting, ""),
        }
        return {"source": self.given.kind, "from": names[self.given.kind]}


def effective(loaded: Loaded) -> list[EffectiveValue]:
    return [
        EffectiveValue(key, value, setting, loaded.sources.get(setting))
        for section in type(loaded.settings).model_fields
        for setting, key, value in _section(section, getattr(loaded.settings, section))
    ]


def _section(name: str, section: Section) -> Iterator[tuple[str, str, Any]]:
    written = section.model_dump(mode="json")
    for field in type(section).model_fields:
        setting = f"{name}.{field}"
        for key, value in _flat(setting, field, getattr(section, field), written[field]):
            yield setting, key, value


def _flat(key: str, name: str, value: Any, written: Any) -> Iterator[tuple[str, Any]]:
    """One value, or its inner values. For a model, key or replica only the fields that are set."""
    if isinstance(value, Section):
        for field in type(value).model_fields:
            if field in value.model_fields_set:
                yield from _flat(f"{key}.{field}", field, getattr(value, field), written[field])
    elif isinstance(value, dict) and any(isinstance(inner, Section) for inner in value.values()):
        for inner_name, inner in value.items():
            if isinstance(inner, Section) and not inner.model_fields_set:
                yield f"{key}.{inner_name}", {}
            yield from _flat(f"{key}.{inner_name}", inner_name, inner, written[inner_name])
    else:
        yield key, _masked(name, written)


def _masked(name: str, value: Any) -> Any:
    if not _SECRET.search(name):
        return value
    if isinstance(value, list):
        return [_masked(name, inner) for inner in value]
    if isinstance(value, dict):
        return {inner: _masked(name, text) for inner, text in value.items()}
    return MASK if isinstance(value, str) else value
