"""The models that the server knows, by name and alias."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paddock.config import nearest
from paddock.errors import InvalidRequest, ModelNotFound, StartupError
from paddock.fleet.catalogue.files import SUFFIX
from paddock.fleet.catalogue.model import Model


class Catalogue:
    """Models by name. With a single model any name matches, as in llama-server.

    Two catalogues are equal if the same names lead to the same models.
    """

    def __init__(
        self,
        models: list[Model],
        *,
        default: str | None = None,
        any_name: bool = False,
        has_alias: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`has_alias`: the operator has named the single model (-a)."""
        self.notes = notes
        """Warnings for the operator."""
        self._models = {model.name: model for model in models}
        for name in [member.name for model in models for member in model.worker_models().values() if model.replicas]:
            if name in self._models:
                raise StartupError(f"a replica and a model have the same name {name!r}")
        self._aliases = {alias: model for model in models for alias in model.aliases}
        self._any_name = any_name and len(models) == 1
        self._has_alias = has_alias
        self._default = self.find(default) if default else next(iter(models), None) if len(models) == 1 else None

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def map_models(self, change: Callable[[Model], Model]) -> Catalogue:
        """The same catalogue with each model changed."""
        default = self._default.name if self._default is not None else None
        models = [change(model) for model in self]
        return Catalogue(models, default=default, any_name=self._any_name, has_alias=self._has_alias, notes=self.notes)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def is_single(self) -> bool:
        """Whether the server was started with one model file (-m)."""
        return self._any_name

    @property
    def default(self) -> Model | None:
        """The model for requests without a model name."""
        return self._default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalogue):
            return NotImplemented
        return (self._models, self._default, self._any_name) == (other._models, other._default, other._any_name)

    __hash__ = None  # type: ignore[assignment]

    def find(self, name: str | None) -> Model:
        """The model with this name or alias (`.gguf` optional, case-sensitive). Raises `ModelNotFound`."""
        if name is None or name == "":
            if self._default is None:
                raise InvalidRequest("model is required: no default_model is configured", param="model")
            return self._default
        return next(iter(self._models.values())) if self._any_name else self.named(name)

    def shown_name(self, model: Model, requested: str | None) -> str:
        """The name of the model in answers: its id, or the requested name if a single model has no name (-a)."""
        return requested if requested and self._any_name and not self._has_alias else model.name

    def named(self, name: str) -> Model:
        """The same, but a single model does not match other names."""
        stem = name.removesuffix(SUFFIX)
        found = self._models.get(stem) or self._aliases.get(name) or self._aliases.get(stem)
        if found is None:
            raise ModelNotFound(f"model {name!r} not found{nearest(stem, list(self._models))}", param="model")
        return found
