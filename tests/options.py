"""Engine options and models for tests, with the defaults of the settings."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from paddock.config import ModelSettings, NamedModel
from paddock.fleet.catalogue import options
from paddock.fleet.catalogue.model import Model
from paddock.types import DraftParams, EngineOptions


@cache
def _default_options() -> EngineOptions:
    """The defaults that depend on the machine are replaced by fixed values."""
    settings = ModelSettings(n_threads=1, parallel=4, kv_unified=True, cache_ram=0)
    return options.engine_options(settings, verbose=False)


def engine_options(**changes: Any) -> EngineOptions:
    return msgspec.structs.replace(_default_options(), **changes)


def draft_params(**changes: Any) -> DraftParams:
    return msgspec.structs.replace(_default_options().draft, **changes)


_SETTINGS = ("load_timeout", "silence_timeout", "hang_timeout", "idle_timeout", "sandbox", "pinned")


def new_model(name: str, path: str, **changes: Any) -> Model:
    """Changes are fields of the model, or of its settings."""
    settings = NamedModel(**{key: changes.pop(key) for key in _SETTINGS if key in changes})
    given: dict[str, Any] = {"options": engine_options(), "settings": settings}
    return Model(name, path, **given | changes)
