"""Options of models that were changed while the server runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.model import Model
from paddock.types import CacheType


class LoadOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options that may be chosen for a load; None: as the settings say."""

    n_ctx: int | None = None
    n_gpu_layers: int | None = None
    parallel: int | None = None
    cache_type_k: CacheType | None = None
    cache_type_v: CacheType | None = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class OptionChanges:
    """By the model's name. They count until `clear`."""

    def __init__(self) -> None:
        self._changes: dict[str, dict[str, Any]] = {}

    def clear(self) -> None:
        self._changes.clear()

    def set(self, model: Model, option: str, value: object) -> None:
        self._changes.setdefault(model.name, {})[option] = value

    def replace(self, model: Model, options: Mapping[str, Any], *, among: frozenset[str]) -> None:
        """Use these options, and those of the settings for all others of `among`."""
        kept = {name: value for name, value in self._changes.get(model.name, {}).items() if name not in among}
        self._changes[model.name] = kept | dict(options)

    def apply(self, catalogue: Catalogue) -> Catalogue:
        if not any(self._changes.values()):
            return catalogue
        return catalogue.map_models(lambda model: with_options(model, self._changes.get(model.name, {})))


def with_options(model: Model, options: Mapping[str, Any]) -> Model:
    """The model with other options. What they name is not chosen at load time any more."""
    if not options:
        return model
    freedom = replace(
        model.freedom,
        layers=model.freedom.layers and "n_gpu_layers" not in options,
        context=model.freedom.context and "n_ctx" not in options,
    )
    return replace(model, options=msgspec.structs.replace(model.options, **options), freedom=freedom)
