"""Builds the catalogue from the settings and the files. Reads file headers at most; never loads a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from paddock.config import DEFAULT_MODEL, ModelManagerSettings, NamedModel, nearest
from paddock.errors import ModelNotFound, StartupError
from paddock.fleet.catalogue.adapters import read_adapter
from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.demo import find_demo
from paddock.fleet.catalogue.files import SUFFIX, FoundModel, ModelFile, find_models, model_at, with_projectors
from paddock.fleet.catalogue.gguf import BrokenGGUF
from paddock.fleet.catalogue.kinds import RequestedKind
from paddock.fleet.catalogue.model import FAKE, Model
from paddock.fleet.catalogue.options import engine_options, freedom_of
from paddock.fleet.catalogue.projectors import fitting_projector
from paddock.fleet.process.environment import has_rpc


def open_catalogue(
    settings: ModelManagerSettings, *, verbose: bool = False, slot_save_path: Path | None = None
) -> Catalogue:
    """The models of the settings: one file, a directory and `model_manager.models`, or else the demo model.

    Raises `StartupError` if the settings are wrong.
    """
    builder = _Builder(settings, verbose=verbose, slot_save_path=slot_save_path)
    if settings.model is not None:
        return Catalogue([builder.only(settings.model)], any_name=True, has_alias=bool(settings.alias))
    if settings.models_directory is None and not settings.models:
        return Catalogue([builder.only(_demo())], any_name=True, has_alias=bool(settings.alias))
    models, notes = builder.all()
    try:
        catalogue = Catalogue(models, default=settings.default_model, notes=notes)
    except ModelNotFound as error:
        raise StartupError(f"default_model: {error.message}") from None
    return _with_preloaded(catalogue, [*settings.preload, *([DEFAULT_MODEL] if settings.lazy is False else [])])


class _Builder:
    """Builds models from files and settings."""

    def __init__(self, settings: ModelManagerSettings, *, verbose: bool, slot_save_path: Path | None) -> None:
        self._settings = settings
        self._verbose = verbose
        self._slot_save_path = "" if slot_save_path is None else str(slot_save_path.absolute())

    def only(self, path: Path) -> Model:
        """The single model of `-m FILE`. Its first alias becomes its name, as in llama-server."""
        fake = str(path).startswith(FAKE)
        if not fake and not path.is_file():
            raise StartupError(f"the model file {path} does not exist")
        found = FoundModel("fake", (ModelFile(str(path)),)) if fake else with_projectors(model_at(path))
        model = self._model(found.name, found, tuple(self._settings.alias), is_single=True)
        model = replace(model, preload=model.preload or not self._settings.lazy or bool(self._settings.preload))
        if self._settings.alias:
            names = dict.fromkeys([*model.aliases, model.name])
            name, *others = names
            model = replace(model, name=name, aliases=tuple(others))
        problem = model.problem()
        if problem is not None:
            raise StartupError(f"cannot serve {model.path}: {problem}")
        return model

    def all(self) -> tuple[list[Model], tuple[str, ...]]:
        """The models named in the settings, then every other file of the directory.

        A name given in the settings wins, then the file nearest to the top. Another file with that name is served under
        its path below the directory.
        """
        directory = self._settings.models_directory
        if directory is not None and not directory.is_dir():
            raise StartupError(f"the models directory {directory} does not exist")
        if self._settings.adapters:
            raise StartupError("adapters need a single model: use -m FILE, or set them under model_manager.models")
        if self._settings.model_draft is not None:
            raise StartupError("a draft model needs a single model: use -m FILE, or set it under model_manager.models")
        if self._settings.mmproj is not None:
            raise StartupError("a projector needs a single model: use -m FILE, or set it under model_manager.models")
        found, notes = find_models(directory) if directory is not None else ([], [])
        if self._settings.alias:
            notes.append("--alias has no effect with several models: set aliases under model_manager.models")
        models = self._named_models(found, notes)
        taken = self._given_names()
        served = {model.path for model in models}
        for one in found:
            if one.files[0].path in served:
                continue
            name = one.relative_path if one.name in taken else one.name
            if name in taken:
                notes.append(f"{one.files[0].path} is not served: another model has the name {name!r}")
                continue
            if name != one.name:
                notes.append(f"{one.files[0].path} is served as {name!r}: another model has the name {one.name!r}")
            taken[name] = name
            models.append(replace(self._model(name, one), source="models_dir"))
        return models, tuple(notes)

    def _named_models(self, found: list[FoundModel], notes: list[str]) -> list[Model]:
        models = []
        for key in self._settings.models:
            name = key.removesuffix(SUFFIX)
            settings = self._settings.settings_for(name)
            match = self._file_of(name, settings, found)
            if match is None and settings.replicas and all(replica.url for replica in settings.replicas.values()):
                match = FoundModel(name, ())  # served by other servers: no file needed
            if match is None:
                near = nearest(name, [one.name for one in found])
                notes.append(f"no file for the model {name!r} of the settings{near}")
                match = FoundModel(name, (), known_problem=f"no file with that name{near}")
            models.append(replace(self._model(name, match), source="preset"))
        return models

    def _file_of(self, name: str, settings: NamedModel, found: list[FoundModel]) -> FoundModel | None:
        if settings.path is None:
            by_path = next((one for one in found if one.relative_path == name), None)
            return by_path or next((one for one in found if one.name == name), None)
        if str(settings.path).startswith(FAKE):
            return FoundModel(name, (ModelFile(str(settings.path)),))
        # A relative path starts at the models directory, if there is one.
        path = (self._settings.models_directory or Path()) / settings.path
        same = model_at(path)
        by_path = next((one for one in found if one.files[0].path == same.files[0].path), None)
        return by_path or next((one for one in found if one.identity == same.identity), same)

    def _given_names(self) -> dict[str, str]:
        """The model of each name and alias in the settings. Raises `StartupError` if two models share one."""
        taken: dict[str, str] = {}
        for key, settings in self._settings.models.items():
            name = key.removesuffix(SUFFIX)
            for given in {name, *settings.aliases}:
                if given in taken:
                    raise StartupError(f"model_manager.models: {taken[given]!r} and {name!r} share the name {given!r}")
                taken[given] = name
        return taken

    def _model(self, name: str, found: FoundModel, aliases: tuple[str, ...] = (), *, is_single: bool = False) -> Model:
        settings = self._settings.settings_for(name)
        try:
            requested, options = RequestedKind.of(settings), engine_options(settings, verbose=self._verbose)
        except StartupError as error:
            raise StartupError(f"model {name!r}: {error.message}") from None
        if settings.rpc and not has_rpc():
            raise StartupError(
                f"rpc (--rpc) of the model {name!r} needs a llama.cpp with RPC: `paddock build` compiles one"
            )
        first = found.files[0] if found.files else ModelFile("")
        model = Model(
            name,
            first.path,
            created=first.written // 1_000_000_000,
            aliases=(*aliases, *settings.aliases),
            requested=requested,
            options=options,
            freedom=freedom_of(settings, is_single=is_single),
            files=found.files,
            projectors=found.projectors,
            known_problem=found.known_problem,
            settings=settings,
            slot_save_path=self._slot_save_path,
            preload=settings.preload,
            replicas=tuple(settings.replicas.items()),
        )
        if settings.adapters:
            model = _with_adapters(model, settings.adapters)
        if settings.model_draft is not None and settings.spec_type in ("draft", "auto"):
            # Like a model's path: relative to the models directory, unless -m was given.
            base = self._settings.models_directory if self._settings.model is None else None
            model = _with_draft(model, (base or Path()) / settings.model_draft)
        if settings.mmproj is not None:
            base = self._settings.models_directory if self._settings.model is None else None
            return _with_projector(model, (base or Path()) / settings.mmproj, is_named=True)
        found_beside = fitting_projector(model) if settings.mmproj_auto else None
        return model if found_beside is None else _with_projector(model, found_beside, is_named=False)


def _with_preloaded(catalogue: Catalogue, wanted: Sequence[str]) -> Catalogue:
    names = {name for word in wanted for name in _matching(catalogue, word)}
    return catalogue.map_models(lambda model: replace(model, preload=True) if model.name in names else model)


def _matching(catalogue: Catalogue, word: str) -> list[str]:
    """The names of the models that a word of `preload` means: a name, an alias, a pattern or `default`."""
    if any(sign in word for sign in "*?["):
        return [model.name for model in catalogue if fnmatchcase(model.name, word)]
    try:
        return [catalogue.named(word).name]
    except ModelNotFound as error:
        if word != DEFAULT_MODEL:
            raise StartupError(f"preload (--preload): {error.message}") from None
    if catalogue.default is None:
        raise StartupError(
            "--preload without a name (model_manager.lazy: false) needs default_model; "
            "set it, name the models, or set `preload` for models under model_manager.models"
        )
    return [catalogue.default.name]


def _with_adapters(model: Model, given: list[tuple[Path, float]]) -> Model:
    if model.kind() not in (None, "generation"):
        return replace(model, known_problem="adapters need a model that generates text")
    architecture = model.description().architecture
    try:
        adapters = tuple(read_adapter(path.absolute(), scale, architecture=architecture) for path, scale in given)
    except BrokenGGUF as error:
        return replace(model, known_problem=str(error))
    options = msgspec.structs.replace(model.options, adapters=tuple(adapter.path for adapter in adapters))
    return replace(model, adapters=adapters, options=options)


def _with_draft(model: Model, path: Path) -> Model:
    if model.is_fake:
        return replace(model, known_problem="a fake model takes no draft model: use fake:draft=4")
    if model.kind() not in (None, "generation"):
        return replace(model, known_problem="a draft model needs a model that generates text")
    found = model_at(path)
    options = msgspec.structs.replace(model.options, model_draft=found.files[0].path)
    problem = f"its draft model is incomplete: {found.known_problem}" if found.known_problem else ""
    return replace(model, draft=found.files, options=options, known_problem=model.known_problem or problem)


def _with_projector(model: Model, path: Path, *, is_named: bool) -> Model:
    if model.is_fake:
        return replace(model, known_problem="a fake model takes no projector")
    if model.kind() not in (None, "generation"):
        return replace(model, known_problem="a projector (mmproj) needs a model that generates text")
    file = ModelFile.stat(path.absolute())
    options = msgspec.structs.replace(model.options, mmproj=file.path, mmproj_auto=not is_named)
    return replace(model, projector=(file,), options=options)


def _demo() -> Path:
    if (path := find_demo()) is not None:
        return path
    raise StartupError(
        "no model given: use -m FILE, -hf REPO or --models-dir DIR, or download the demo model: paddock pull demo"
    )
