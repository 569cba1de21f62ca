"""Models of the hub: search them, download them and delete them; and what a load would take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from paddock.errors import FeatureDisabled, HubUnreachable, InvalidRequest, PullFailed, Unavailable
from paddock.fleet import Estimate, Footprint
from paddock.fleet.catalogue.hub_search import hub_contents, search_hub
from paddock.gateway.dialects.admin.schema import ChosenOptions, NamedModel
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import Success, describe
from paddock.gateway.http.responses import JSON, struct_from
from paddock.gateway.ops.downloads import Download, hub_source

_MOST_FOUND = 100
_LONGEST_TEXT = 200

T = TypeVar("T")


class EstimateRequest(NamedModel):
    options: ChosenOptions = Field(default_factory=ChosenOptions)


class MemoryParts(msgspec.Struct, kw_only=True):
    """Bytes on one device."""

    weights: int
    cache: int
    """The KV cache of the whole context."""
    compute: int


class MemoryForecast(msgspec.Struct, kw_only=True):
    """What a model would take."""

    model: str
    host: MemoryParts
    """All zero if it cannot be loaded."""
    gpu: MemoryParts
    process: int
    """Bytes of the worker without the model."""
    prefixes: int
    """The most bytes that cached prefixes take in host memory."""
    limit: dict[str, int]
    """The most bytes that all models together may take on each device now. A device without an entry has no limit."""
    fits: bool
    problem: str | None
    """Why it cannot be loaded, or does not fit."""


class DownloadState(msgspec.Struct, kw_only=True):
    name: str
    state: Literal["running", "finished", "failed", "cancelled"]
    done: int
    """Bytes of all its files so far."""
    total: int
    """Bytes of the files that have begun."""
    model: str | None
    """The name under which it is served, if it has finished."""
    error: str | None


class DownloadList(msgspec.Struct):
    folder: str | None
    """None: the server serves no folder, so nothing can be downloaded."""
    downloads: list[DownloadState]


class Repository(msgspec.Struct, kw_only=True):
    name: str
    downloads: int
    likes: int
    updated: str | None
    is_gated: bool


class RepositoryList(msgspec.Struct):
    repositories: list[Repository]


class RepositoryModel(msgspec.Struct, kw_only=True):
    name: str
    """As POST /models takes it."""
    quantisation: str
    files: list[str]
    size: int
    """Bytes."""
    fits: bool | None
    """Whether the weights fit the memory that all models together may take now; null if there is no limit."""


class RepositoryContents(msgspec.Struct, kw_only=True):
    name: str
    revision: str
    models: list[RepositoryModel]
    """The smallest first."""
    projectors: list[str]


def managing_routes(services: Services) -> APIRouter:
    fleet, downloads, max_body = services.fleet, services.downloads, services.settings.max_body_bytes
    router = APIRouter(tags=["admin"])

    @router.get("/admin/hub", **describe(RepositoryList))
    async def search(
        text: Annotated[str, Query(alias="search", max_length=_LONGEST_TEXT)] = "",
        limit: Annotated[int, Query(ge=1, le=_MOST_FOUND)] = 20,
    ) -> Response:
        """Repositories of the Hugging Face hub with GGUF models, those with the most downloads first."""
        found = await _ask_hub(lambda: search_hub(text, most=limit))
        return JSON(
            RepositoryList(
                [
                    struct_from(Repository, one, updated=one.updated.isoformat() if one.updated is not None else None)
                    for one in found
                ]
            )
        )

    @router.get("/admin/hub/{owner}/{repository}", **describe(RepositoryContents))
    async def show_repository(owner: str, repository: str) -> Response:
        """The models of a repository of the hub, and whether their weights fit the memory."""
        name = hub_source(f"{owner}/{repository}", param="repository").repository
        found = await _ask_hub(lambda: hub_contents(name))
        limits = await fleet.memory_limits()
        models = [
            RepositoryModel(
                name=f"{name}:{one.quantisation}",
                quantisation=one.quantisation,
                files=one.files,
                size=one.size,
                fits=one.size <= sum(limits.values()) if limits else None,
            )
            for one in found.models
        ]
        return JSON(RepositoryContents(name=name, revision=found.revision, models=models, projectors=found.projectors))

    @router.get("/admin/downloads", **describe(DownloadList))
    async def list_downloads() -> Response:
        """The running downloads and the last that have ended. `POST /models` starts one, `POST /models/unload` cancels
        it.
        """
        try:
            folder: str | None = str(downloads.folder)
        except FeatureDisabled:
            folder = None
        return JSON(DownloadList(folder, [_download(one) for one in downloads.all()]))

    @router.post("/admin/estimate", **describe(MemoryForecast, body=EstimateRequest))
    async def estimate(request: Request) -> Response:
        """The memory that a model would take with these options, and whether it fits. Loads nothing."""
        body = await read_body(request, EstimateRequest, limit=max_body)
        found = await fleet.fits(fleet.catalogue.named(body.model), body.options.chosen())
        parts = found.estimate or Estimate(Footprint(), Footprint(), 0)
        return JSON(
            MemoryForecast(
                model=found.model.name,
                host=struct_from(MemoryParts, parts.host),
                gpu=struct_from(MemoryParts, parts.device),
                process=parts.process,
                prefixes=parts.prefixes,
                limit=dict(found.limit),
                fits=found.problem is None,
                problem=found.problem,
            )
        )

    @router.delete("/models", **describe(Success))
    async def delete_model(model: str) -> Response:
        """Delete a model that was downloaded into the models directory: unload it and remove its files. Running
        requests finish first. Other files are not deleted.
        """
        if downloads.cancel(model):
            return JSON(Success())
        await downloads.remove(fleet.catalogue.named(model))
        return JSON(Success())

    return router


async def _ask_hub(ask: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(ask)
    except HubUnreachable as error:
        raise Unavailable(error.message, retry_after=5) from None
    except PullFailed as error:
        raise InvalidRequest(error.message) from None


def _download(download: Download) -> DownloadState:
    files = download.files.values()
    return DownloadState(
        name=download.name,
        state=download.state,
        done=sum(file.done for file in files),
        total=sum(file.total for file in files),
        model=None if download.model is None else download.model.name,
        error=None if download.error is None else download.error.message,
    )
