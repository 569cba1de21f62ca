"""The models: OpenAI's cards, with llama-server's `meta` and `status`. Loads nothing."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.fleet import Description, ModelStatus
from paddock.gateway.auth.caller import caller_of, model_for
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.openapi import Success, describe
from paddock.gateway.http.responses import JSON, struct_from
from paddock.gateway.http.scope import IGNORED
from paddock.gateway.ops.downloads import hub_source
from paddock.types import MediaKind, ModelInfo, ModelKind


class ModelMeta(msgspec.Struct, kw_only=True):
    """The metadata of the file; null if a value is absent."""

    architecture: str | None
    quantization: str | None
    ftype: str | None
    """The same in llama.cpp's words."""
    vocab_type: int | None
    n_vocab: int | None
    n_ctx_train: int | None
    n_ctx: int | None
    """Of one request, while the model is loaded."""
    n_embd: int | None
    n_params: int | None
    size: int | None
    """Bytes."""
    loaded: bool


class LoadStatus(msgspec.Struct, omit_defaults=True):
    value: Literal["unloaded", "loading", "loaded", "unloading"]
    problem: str | None = None
    """Why it cannot be loaded, or its last failure."""
    failed: bool = False
    """The last load failed."""
    progress: float | None = None
    """The progress of the load, from 0 to 1."""


class ModelModalities(msgspec.Struct):
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["local"] = "local"
    aliases: list[str]
    tags: list[str]
    kind: ModelKind | None
    """What it is served for."""
    status: LoadStatus
    meta: ModelMeta
    architecture: ModelModalities = msgspec.field(default_factory=ModelModalities)
    source: Literal["models_dir", "preset"] | None
    """`models_dir`: a file of the models directory; `preset`: an entry of the settings."""
    can_remove: bool
    """Whether `DELETE /models` deletes its files: it was downloaded into the models directory."""


class OllamaDetails(msgspec.Struct, kw_only=True):
    parent_model: str = ""
    format: Literal["gguf"] = "gguf"
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str


class OllamaModel(msgspec.Struct, kw_only=True):
    """The model in Ollama's shape. llama-server lists it so beside `data`."""

    name: str
    model: str
    modified_at: str = ""
    size: str = ""
    digest: str = ""
    type: Literal["model"] = "model"
    description: str = ""
    tags: list[str]
    capabilities: list[str]
    parameters: str = ""
    details: OllamaDetails


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]
    models: list[OllamaModel] | msgspec.UnsetType = msgspec.UNSET
    """Of a server with a single model, as in llama-server."""


class Download(BodyFields):
    """What llama-server's router takes."""

    model: str | None = None
    """`OWNER/NAME[@REVISION][:QUANTISATION]` on the hub. `/models/sse` shows its progress."""


def model_routes(services: Services) -> APIRouter:
    fleet = services.fleet
    router = APIRouter(tags=["models"])

    async def cards(statuses: list[ModelStatus]) -> list[ModelCard]:
        # Reading a header with a large vocabulary is slow the first time.
        found = await asyncio.to_thread(
            lambda: [(one.model.description(), one.model.problem(), one.model.media()) for one in statuses]
        )
        removable = await asyncio.to_thread(services.downloads.removable, [one.model for one in statuses])
        return [
            _card(
                status,
                description,
                problem,
                fleet.info(status.model),
                await fleet.kind(status.model),
                media,
                can_remove=status.model.name in removable,
            )
            for status, (description, problem, media) in zip(statuses, found, strict=True)
        ]

    @router.get("/models", **describe(ModelList))
    @router.get("/v1/models", **describe(ModelList))
    async def list_models(request: Request, reload: bool = False) -> Response:
        """Every model that the caller may use, loaded or not. `?reload=1` is ignored: use POST to reload."""
        if reload:
            request.scope[IGNORED] = "reload"
        return await listed(request)

    @router.post("/models", **describe(ModelList, body=Download, optional=True))
    @router.post("/v1/models", **describe(ModelList, body=Download, optional=True))
    async def reload_models(request: Request, reload: bool = True) -> Response:
        """Read the settings and the models directory again, as `POST /admin/reload` does, and list the models. With
        `model` in the body, start to download that model from the hub instead, as llama-server does.
        """
        body = await read_body(request, Download, limit=services.settings.max_body_bytes, optional=True)
        if body.model is not None:
            services.downloads.begin(hub_source(body.model))
            return JSON(Success())
        if reload:
            await services.reloader.reload()
        return await listed(request)

    async def listed(request: Request) -> Response:
        caller = caller_of(request)
        found = await cards([status for status in fleet.status() if caller.may_use(status.model)])
        single = [_ollama_model(card) for card in found] if fleet.catalogue.is_single else msgspec.UNSET
        return JSON(ModelList(data=found, models=single))

    @router.get("/v1/models/{id:path}", **describe(ModelCard))
    async def show_model(request: Request, id: str) -> Response:
        """One model, by its name or an alias."""
        model = model_for(request, fleet, id)
        (card,) = await cards([status for status in fleet.status() if status.model.name == model.name])
        return JSON(card)

    return router


def _card(
    status: ModelStatus,
    description: Description,
    problem: str | None,
    info: ModelInfo | None,
    kind: ModelKind | None,
    media: tuple[MediaKind, ...],
    *,
    can_remove: bool,
) -> ModelCard:
    model = status.model
    return ModelCard(
        id=model.name,
        created=model.created,
        aliases=list(model.aliases),
        tags=sorted(model.settings.tags),
        source=model.source,
        kind=kind,
        status=LoadStatus(
            status.state,
            problem or (status.failure if status.is_failed else None),
            failed=status.is_failed,
            progress=status.progress if status.state == "loading" else None,
        ),
        meta=struct_from(ModelMeta, description, n_ctx=None if info is None else info.n_ctx, loaded=info is not None),
        architecture=ModelModalities(("text", *(media if info is None else info.media))),
        can_remove=can_remove,
    )


def _capabilities(card: ModelCard) -> list[str]:
    """As llama-server lists them."""
    if card.kind == "embedding":
        return ["embedding"]
    return ["completion", *(["multimodal"] if len(card.architecture.input_modalities) > 1 else [])]


def _ollama_model(card: ModelCard) -> OllamaModel:
    family = card.meta.architecture or ""
    return OllamaModel(
        name=card.id,
        model=card.id,
        tags=card.tags or [""],
        capabilities=_capabilities(card),
        details=OllamaDetails(family=family, families=[family], quantization_level=card.meta.quantization or ""),
    )
