"""`/props`: the properties of a model and of the server. Loads nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from paddock import __version__
from paddock.config import ServerSettings
from paddock.errors import InvalidRequest, NotSupported
from paddock.fleet import Fleet, Model
from paddock.gateway.auth.caller import model_for
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.llama.placement import PlacementProps, placement_props
from paddock.gateway.generation.defaults import defaults_of
from paddock.gateway.generation.media import MEDIA_MARKER
from paddock.gateway.generation.settings import generation_settings
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import Success, describe
from paddock.gateway.http.responses import JSON, struct_from
from paddock.libraries import sha256_by_file
from paddock.types import (
    EngineOptions,
    LibraryInfo,
    ModelInfo,
    ModelKind,
    Pooling,
    Reuse,
    StateFormatName,
    check_template,
)

_LONGEST_TEMPLATE = 1 << 20


class Changes(BaseModel):
    """The properties that can be changed. Any other field is refused by name: llama-server changes none yet."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    chat_template: str | None = Field(None, max_length=_LONGEST_TEMPLATE)
    """Replaces the model's own template; empty: the model's own again."""


class DefaultSettings(msgspec.Struct):
    n_ctx: int
    params: dict[str, Any]


class Modalities(msgspec.Struct):
    vision: bool = False
    video: bool = False
    """Never: for clients of llama-server."""
    audio: bool = False


class ThinkingProps(msgspec.Struct):
    """What the chat template knows about reasoning, by its words: whether `enable_thinking` turns it on and off, and
    whether `reasoning_effort` changes it.
    """

    can_switch: bool
    has_effort: bool


class Deterministic(msgspec.Struct):
    """Whether requests are deterministic by default; how they are isolated, alone in the KV cells or in steps of their
    own; and how many answers share such a step.
    """

    default: bool
    method: Literal["alone", "own_steps"]
    together: int


class CacheProps(msgspec.Struct, kw_only=True):
    layout: Literal["unified", "streams"]
    type_k: str
    type_v: str
    cells: int | None
    bytes_per_token: int | None
    state_format: StateFormatName | None
    """What is copied to host memory and to disk; null: the model is not loaded, or nothing is copied."""
    ram_bytes: int
    disk_bytes: int
    """The limit of the files with prefixes; 0 if none of this model are kept on disk."""


class ContextProps(msgspec.Struct, kw_only=True):
    """Context sizes in tokens: `n_ctx` for all requests together (0: as trained), of one request, and of the training.
    `is_clamped`: a request gets less than `requested` allows. `shift`: an answer continues when its context is full.
    """

    requested: int
    per_request: int | None
    trained: int | None
    is_clamped: bool | None
    shift: bool


class DraftProps(msgspec.Struct, kw_only=True):
    """A draft model and its parameters. It is used while at most `answers` answers are generated; 0: it does not fit
    this model, and the log has the reason.
    """

    model_path: str
    n_max: int
    n_min: int
    p_min: float
    answers: int | None


class LibraryProps(msgspec.Struct, kw_only=True):
    """The libllama of the model's worker."""

    version: str
    """The release of llama.cpp."""
    commit: str | None
    """Null: the library does not report it."""
    build_id: str
    """Differs between any two builds; a part of `fingerprint`."""
    compiler: str | None
    features: tuple[str, ...]
    """Instruction sets and other options of the build, by ggml's names."""
    origin: str
    """Where it was found: a package, a variable or the system."""
    path: str
    sha256: dict[str, str]
    """Of each of its files."""


class Props(msgspec.Struct, kw_only=True):
    """For a model that is not loaded, only what is known without loading it."""

    default_generation_settings: DefaultSettings
    model_alias: str
    model_ftype: str
    """The quantisation in llama.cpp's words: `Q4_K - Medium`. Empty: unknown."""
    model_path: str
    modalities: Modalities
    media_marker: str
    """Stands for a file in a prompt with `multimodal_data`."""
    chat_template: str
    thinking: ThinkingProps
    bos_token: str
    eos_token: str
    loaded: bool
    is_sleeping: bool
    kind: ModelKind | None
    pooling: Pooling | None
    total_slots: int
    deterministic: Deterministic
    reuse: Reuse | None
    context: ContextProps
    kv_cache: CacheProps
    placement: PlacementProps
    draft: DraftProps | None
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    ui: bool
    build_info: str
    llama_cpp_commit: str | None
    """The commit of llama.cpp; null while the model is not loaded, and if the library does not report it."""
    libllama: LibraryProps | None
    """Null while the model is not loaded, and for an engine without one."""
    sampler_profile: int | None
    """The version of the samplers; null while the model is not loaded."""
    fingerprint: str
    """As `system_fingerprint`; empty while the model is not loaded."""


class RouterProps(msgspec.Struct, kw_only=True):
    """Of a server with several models and no default model, as llama-server's router answers."""

    role: Literal["router"] = "router"
    max_instances: int
    """The most models that are loaded at once; 0: as many as fit."""
    models_autoload: bool
    model_alias: Literal["paddock"] = "paddock"
    model_path: Literal["none"] = "none"
    default_generation_settings: DefaultSettings
    build_info: str


def props_routes(services: Services) -> APIRouter:
    fleet, settings = services.fleet, services.settings
    router = APIRouter(tags=["native"])

    @router.get("/props", **describe(Props, RouterProps))
    async def show_props(request: Request, model: str | None = None) -> Response:
        """The properties of a model and how it is served. Loads nothing."""
        if not model and fleet.catalogue.default is None:
            return JSON(_router_props(fleet))
        found = model_for(request, fleet, model)
        info = fleet.info(found)
        defaults = await asyncio.to_thread(defaults_of, found)
        usual = generation_settings(defaults.sampling(), max_tokens=defaults.limit, adapters=fleet.adapters(found))
        usual |= {"n_keep": defaults.n_keep or 0, "n_discard": defaults.n_discard or 0}
        placement = placement_props(found, fleet.options(found))
        library = await asyncio.to_thread(_library, info.library) if info is not None and info.library else None
        template = info.chat_template if info is not None else await asyncio.to_thread(found.template)
        thinking, kind = _thinking(template), await fleet.kind(found)
        ftype = (await asyncio.to_thread(found.description)).ftype
        return JSON(_props(found, info, library, placement, thinking, kind, ftype, usual, settings))

    @router.post("/props", **describe(Success, body=Changes, optional=True))
    async def change_props(request: Request) -> Response:
        """Change a model's chat template until the next reload of the settings. The next request loads it again."""
        if not settings.props:
            raise NotSupported("This server does not support changing global properties. Start it with `--props`")
        changes = await read_body(request, Changes, limit=settings.max_body_bytes, optional=True, exact=True)
        if changes.chat_template is not None:
            try:
                template = changes.chat_template and check_template(changes.chat_template)
            except ValueError as error:
                raise InvalidRequest(str(error), param="chat_template") from None
            fleet.set_chat_template(model_for(request, fleet, changes.model), template)
        return JSON(Success())

    return router


def _router_props(fleet: Fleet) -> RouterProps:
    return RouterProps(
        max_instances=fleet.rules.models_max or 0,
        models_autoload=all(model.settings.autoload for model in fleet.catalogue),
        default_generation_settings=DefaultSettings(n_ctx=0, params={}),
        build_info=f"paddock {__version__}",
    )


def _props(
    model: Model,
    info: ModelInfo | None,
    library: LibraryProps | None,
    placement: PlacementProps,
    thinking: ThinkingProps,
    kind: ModelKind | None,
    ftype: str | None,
    usual: dict[str, Any],
    settings: ServerSettings,
) -> Props:
    options = model.options
    unified = options.kv_unified if info is None else info.kv_unified
    media = model.media() if info is None else info.media
    return Props(
        default_generation_settings=DefaultSettings(n_ctx=info.n_ctx if info is not None else 0, params=usual),
        model_alias=model.name,
        model_ftype=ftype or "",
        model_path=model.path,
        modalities=Modalities(vision="image" in media, audio="audio" in media),
        media_marker=MEDIA_MARKER,
        chat_template=info.chat_template if info is not None else options.chat_template,
        thinking=thinking,
        bos_token=info.bos if info is not None else "",
        eos_token=info.eos if info is not None else "",
        loaded=info is not None,
        is_sleeping=info is None,
        total_slots=options.parallel if info is None else info.n_slots,
        deterministic=Deterministic(
            options.deterministic, "alone" if unified else "own_steps", 1 if info is None else info.exact_batch
        ),
        kind=kind,
        pooling=None if info is None else info.pooling,
        reuse=None if info is None else info.reuse,
        kv_cache=CacheProps(
            layout="unified" if unified else "streams",
            type_k=options.cache_type_k,
            type_v=options.cache_type_v,
            cells=None if info is None else info.n_cells,
            bytes_per_token=None if info is None else info.bytes_per_token,
            state_format=None if info is None else info.state_format,
            ram_bytes=options.cache_ram_bytes,
            disk_bytes=options.cache_disk_bytes if info is None or info.reuse in ("prefix", "checkpoint") else 0,
        ),
        context=_context(options, info),
        placement=placement,
        draft=_draft(options, info) if options.model_draft else None,
        endpoint_slots=settings.slots,
        endpoint_props=settings.props,
        endpoint_metrics=settings.metrics,
        ui=settings.webui,
        build_info=f"paddock {__version__}" + (f", {info.engine}" if info is not None else ""),
        llama_cpp_commit=library.commit if library is not None else None,
        libllama=library,
        sampler_profile=info.sampler_profile if info is not None else None,
        fingerprint=info.fingerprint if info is not None else "",
    )


def _library(library: LibraryInfo) -> LibraryProps:
    """Reads its files if their digests are not known yet."""
    return LibraryProps(
        version=library.version,
        commit=library.commit or None,
        build_id=library.build_id,
        compiler=library.compiler or None,
        features=library.features,
        origin=library.origin,
        path=library.path,
        sha256=sha256_by_file(Path(library.path)),
    )


_SWITCHES: Final = ("enable_thinking", "thinking_mode", "<think>", "thinking is defined")


def _thinking(template: str) -> ThinkingProps:
    return ThinkingProps(any(word in template for word in _SWITCHES), "reasoning_effort" in template)


def _context(options: EngineOptions, info: ModelInfo | None) -> ContextProps:
    if info is None:
        return ContextProps(
            requested=options.n_ctx, per_request=None, trained=None, is_clamped=None, shift=options.context_shift
        )
    wanted = options.n_ctx if info.kv_unified else options.n_ctx // options.parallel
    return ContextProps(
        requested=options.n_ctx,
        per_request=info.n_ctx,
        trained=info.n_ctx_train,
        is_clamped=wanted > info.n_ctx,
        shift=options.context_shift,
    )


def _draft(options: EngineOptions, info: ModelInfo | None) -> DraftProps:
    answers = None if info is None else info.draft_slots
    return struct_from(DraftProps, options.draft, model_path=options.model_draft, answers=answers)
