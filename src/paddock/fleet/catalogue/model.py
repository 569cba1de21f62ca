"""A model that the server can load: its files, options and metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from paddock.config import NamedModel, ReplicaSettings
from paddock.errors import ModelLoadFailed
from paddock.fleet.catalogue.adapters import Adapter, read_adapter
from paddock.fleet.catalogue.description import Description, describe
from paddock.fleet.catalogue.files import ModelFile
from paddock.fleet.catalogue.gguf import BrokenGGUF, Header
from paddock.fleet.catalogue.headers import read_headers
from paddock.fleet.catalogue.kinds import RequestedKind, kind_of, pooling_of, why_not_a_model
from paddock.fleet.catalogue.projectors import is_projector_header, media_kinds
from paddock.fleet.catalogue.sampling_metadata import sampling_defaults
from paddock.fleet.memory.estimate import (
    Estimate,
    Footprint,
    affordable_rollback,
    estimate,
    estimate_draft,
    estimate_projector,
)
from paddock.fleet.memory.fit import Freedom
from paddock.types import EMBEDDING_POOLING, EngineOptions, MediaKind, ModelKind, Pooling

FAKE = "fake:"


@dataclass(frozen=True, slots=True)
class Model:
    """A model as configured. Two are equal if no setting and no file has changed."""

    name: str
    path: str
    """Its first file."""
    options: EngineOptions
    created: int = 0
    aliases: tuple[str, ...] = field(default=())
    source: Literal["models_dir", "preset"] | None = None
    """llama-server's word for where it comes from: the models directory, or the settings. None for a single model."""
    requested: RequestedKind = field(default=RequestedKind())
    freedom: Freedom = field(default=Freedom())
    """What is chosen at load time so that it fits (`offload.py`), whatever `options` say."""
    files: tuple[ModelFile, ...] = field(default=())
    projectors: tuple[str, ...] = field(default=())
    """Multimodal projectors beside it."""
    adapters: tuple[Adapter, ...] = field(default=())
    draft: tuple[ModelFile, ...] = field(default=())
    """The files of its draft model."""
    projector: tuple[ModelFile, ...] = field(default=())
    """The file of the projector that it uses, if it has one."""
    known_problem: str = ""
    """A problem that is known before any file is read."""
    settings: NamedModel = field(default_factory=NamedModel)
    """Its timeouts, its sandbox and whether it is pinned. The other settings are parts of the fields here."""
    slot_save_path: str = ""
    """The folder for saved slots; empty if saving is off."""
    preload: bool = False
    replicas: tuple[tuple[str, ReplicaSettings], ...] = field(default=())
    """Its replicas by name; empty if one worker serves it."""
    clustered: bool = False
    """A cluster serves it and manages its replicas."""

    @property
    def auto_layers(self) -> bool:
        """Whether the number of GPU layers is decided at load time."""
        return self.freedom.layers

    @property
    def is_remote(self) -> bool:
        """Whether only other servers serve it. There is no model file here then."""
        return bool(self.replicas) and all(settings.url is not None for _, settings in self.replicas)

    def worker_models(self) -> dict[str, Model]:
        """One entry per local worker, by replica name: the model itself, or each of its local replicas."""
        if self.clustered:
            return {}
        if not self.replicas:
            return {"": self}
        return {name: self._replica(name, settings) for name, settings in self.replicas if settings.url is None}

    def _replica(self, name: str, settings: ReplicaSettings) -> Model:
        overrides = {key: getattr(settings, key) for key in ("n_threads", "n_gpu_layers", "devices")}
        overrides = {key: value for key, value in overrides.items() if value is not None}
        return replace(
            self,
            name=f"{self.name}#{name}",
            aliases=(),
            replicas=(),
            options=msgspec.structs.replace(self.options, **overrides),
            freedom=self.freedom if settings.n_gpu_layers is None else replace(self.freedom, layers=False),
        )

    def header(self) -> Header:
        """The header of its files. Raises `BrokenGGUF`, or `OSError` if they cannot be read."""
        return read_headers([Path(file.path) for file in self.files] or [Path(self.path)])

    def draft_header(self) -> Header | None:
        """The header of its draft model, if it has one. Raises `BrokenGGUF`, naming the file."""
        if not self.draft:
            return None
        path = self.draft[0].path
        try:
            header = read_headers([Path(file.path) for file in self.draft])
        except BrokenGGUF as error:
            raise BrokenGGUF(f"cannot use the draft model {path}: {error}") from None
        except OSError as error:
            raise BrokenGGUF(f"cannot read the draft model {path}: {error.strerror}") from None
        if reason := why_not_a_model(header):
            raise BrokenGGUF(f"cannot use the draft model {path}: {reason}")
        return header

    def projector_header(self) -> Header | None:
        """The header of its projector, if it has one. Raises `BrokenGGUF`, naming the file."""
        if not self.projector:
            return None
        path = self.projector[0].path
        try:
            header = read_headers([Path(path)])
        except BrokenGGUF as error:
            raise BrokenGGUF(f"cannot use the projector {path}: {error}") from None
        except OSError as error:
            raise BrokenGGUF(f"cannot read the projector {path}: {error.strerror}") from None
        if not is_projector_header(header):
            raise BrokenGGUF(f"cannot use the projector {path}: it is a model, not a projector")
        return header

    def media(self) -> tuple[MediaKind, ...]:
        """What its prompts may contain besides text, as its projector's header says."""
        try:
            header = self.projector_header()
        except BrokenGGUF:
            return ()
        return () if header is None else media_kinds(header)

    def chat_template(self) -> str:
        """The source of its chat template; empty if it has none, or if its file cannot be read."""
        try:
            return self.options.chat_template or str(self.header().metadata.get("tokenizer.chat_template", ""))
        except (BrokenGGUF, OSError):
            return ""

    def pooling(self) -> Pooling | None:
        """Its pooling; None if it generates text or its file cannot be read, which a load reports.

        Raises `ModelLoadFailed` if it does not support the requested kind.
        """
        if self.is_remote:
            return None
        if self.is_fake:
            return self.requested.pooling or ("mean" if self.requested.vectors else None)
        try:
            return pooling_of(self.header(), self.requested)
        except (BrokenGGUF, OSError):
            return None

    def completed(self, options: EngineOptions) -> EngineOptions:
        """With the options that its header decides. Raises as `pooling` does."""
        options = msgspec.structs.replace(options, pooling=self.pooling())
        try:
            most = 0 if self.is_fake or self.is_remote else affordable_rollback(self.header(), options)
        except (BrokenGGUF, OSError):
            most = 0
        return msgspec.structs.replace(options, max_rolled_back=most)

    def kind(self) -> ModelKind | None:
        """What it is served for; None if it does not support the requested kind."""
        try:
            return kind_of(self.pooling())
        except ModelLoadFailed:
            return None

    def problem(self) -> str | None:
        """Why it cannot be loaded as configured, or None."""
        if self.known_problem or self.is_fake or self.is_remote:
            return self.known_problem or None
        try:
            header = self.header()
            pooling_of(header, self.requested)  # raises if the model does not support the requested kind
            for adapter in self.adapters:
                read_adapter(Path(adapter.path), adapter.scale, architecture=self.description().architecture)
            self.draft_header()
            self.projector_header()
        except BrokenGGUF as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        except ModelLoadFailed as error:
            return error.message
        return why_not_a_model(header)

    def description(self) -> Description:
        """What its header says; empty if the header cannot be read."""
        if self.is_fake:
            return Description(architecture="fake")
        if self.is_remote:
            return Description()
        try:
            return describe(self.header(), sum(file.size for file in self.files))
        except (BrokenGGUF, OSError):
            return Description()

    def template(self) -> str:
        """Its chat template, without loading it; empty if it has none or its header cannot be read."""
        if self.options.chat_template or self.is_fake or self.is_remote:
            return self.options.chat_template
        try:
            return str(self.header().metadata.get("tokenizer.chat_template", ""))
        except (BrokenGGUF, OSError):
            return ""

    def sampling_defaults(self) -> dict[str, Any]:
        """The request fields that its header sets; empty if the header cannot be read."""
        if self.is_fake or self.is_remote:
            return {}
        try:
            return sampling_defaults(self.header().metadata)
        except (BrokenGGUF, OSError):
            return {}

    def estimate(self, *, gpu: bool) -> Estimate | None:
        """The memory it would take. None if it cannot be loaded."""
        return self._estimate(self.options, gpu=gpu)

    def least_estimate(self, *, gpu: bool) -> Estimate | None:
        """The same with the smallest context that may be chosen for it."""
        options, freedom = self.options, self.freedom
        if freedom.context:
            least = freedom.least_context * (1 if options.kv_unified else options.parallel)
            options = msgspec.structs.replace(options, n_ctx=min(options.n_ctx, least))
        return self._estimate(options, gpu=gpu)

    def embedding_estimate(self, *, gpu: bool) -> Estimate | None:
        """The memory of a second context for embeddings, for a model that generates. None if unknown."""
        if self.is_fake or self.is_remote or self.problem() is not None:
            return None
        options = msgspec.structs.replace(self.options, pooling=EMBEDDING_POOLING)
        return estimate(self.header(), options, gpu=gpu).context

    def _estimate(self, options: EngineOptions, *, gpu: bool) -> Estimate | None:
        if self.is_fake:
            return _fake_estimate(self.path)
        if self.is_remote or self.problem() is not None:
            return None
        header, draft, projector = self.header(), self.draft_header(), self.projector_header()
        options = self.completed(options)
        gpu = gpu or bool(options.rpc)
        found = estimate(header, options, gpu=gpu)
        if projector is not None:
            found += estimate_projector(projector, options, gpu=gpu)
        return found if draft is None else found + estimate_draft(draft, header, options, gpu=gpu)

    @property
    def is_fake(self) -> bool:
        return self.path.startswith(FAKE)


def _fake_estimate(path: str) -> Estimate | None:
    """The memory that `fake:memory=MIB` claims."""
    match = re.search(r"\bmemory=(\d+)", path)
    return Estimate(Footprint(weights=int(match[1]) << 20), Footprint(), 0) if match is not None else None
