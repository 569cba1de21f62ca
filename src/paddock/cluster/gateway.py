"""The gateway on a cluster: the same HTTP routes, with models on the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from ray import serve

from paddock import logs
from paddock.batches import Batches
from paddock.cluster.link import RayLink, translated
from paddock.cluster.names import GATEWAY, application_of, on_cluster
from paddock.cluster.replicas import ClusterReplicas
from paddock.cluster.response_batching import BatchedResponses
from paddock.config import Settings
from paddock.errors import PaddockError, StartupError
from paddock.fleet import Fleet, Rules, open_catalogue
from paddock.gateway import ConnectionLimits, MetricsPage, RequestLimits, create_app

_FOLDER_INTERVAL = 5.0
"""Seconds between two attempts to take the data folder, while the gateway before this one still has it."""
_METRICS_TIMEOUT = 5.0
"""Seconds that the other gateways have to return their metrics."""


def _no_reload() -> Settings:
    raise StartupError("on a cluster, change settings with `paddock cluster deploy`")


class ClusterGateway:
    """Ray creates one per gateway, on a running event loop, and forwards HTTP requests to it."""

    def __init__(self, settings: dict[str, Any], digest: str) -> None:
        self._settings = Settings.model_validate(settings)
        self._digest = digest
        server = self._settings.server
        logs.configure(level=server.log_level, form=server.log_format, disabled=server.log_disable)
        manager, name = self._settings.model_manager, self._settings.cluster.name
        self._fleet = Fleet(
            on_cluster(open_catalogue(manager)),
            Rules.of(manager),
            connect=lambda model: ClusterReplicas(
                model.name, RayLink(model.name, application_of(name, model.name)), wait_timeout=manager.wait_timeout
            ),
        )
        self._fleet.preload()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._gateways = serve.get_deployment_handle(GATEWAY, app_name=name)

    def __serve_build_asgi_app__(self) -> FastAPI:
        settings = self._settings
        # A folder has one writer, and a client must reach it with each request.
        has_batches = settings.server.data_dir is not None and settings.cluster.gateways == 1
        app = create_app(
            settings,
            self._fleet,
            _no_reload,
            gateways=settings.cluster.gateways,
            has_batches=has_batches,
            locks_data=False,
        )
        if has_batches:
            self._resuming = asyncio.get_running_loop().create_task(self._resume(app.state.batches))
        self._page: MetricsPage = app.state.metrics_page
        self._page.gather = self._gather
        app.add_middleware(
            RequestLimits, limits=ConnectionLimits.of(self._settings.server), error_formats=app.state.error_formats
        )
        app.add_middleware(BatchedResponses)
        return app

    async def _resume(self, batches: Batches) -> None:
        """The folder is free when the gateway before this one has ended: no event tells when."""
        while not await batches.resume():  # noqa: ASYNC110
            await asyncio.sleep(_FOLDER_INTERVAL)

    async def metrics(self) -> tuple[str, bytes]:
        """The metrics of this gateway, for the gateway that is scraped."""
        return self._name, await self._page.own()

    async def _gather(self) -> dict[str, bytes]:
        """The metrics of all gateways; one that does not answer is left out."""
        try:
            with translated("the gateways"):
                handle = self._gateways
                answers = await handle.broadcast("metrics").results_async(
                    timeout_s=_METRICS_TIMEOUT, return_exceptions=True
                )
        except (PaddockError, TimeoutError):
            answers = []
        return {self._name: await self._page.own()} | dict(answer for answer in answers if isinstance(answer, tuple))

    async def digest(self) -> str:
        """The digest of its settings."""
        return self._digest
