"""The gateway on a cluster: the same HTTP surface, with models that are elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from ray import serve

from paddock import logs
from paddock.cluster.link import RayLink, translated
from paddock.cluster.names import GATEWAY, application_of, on_cluster
from paddock.cluster.proxied import Proxied
from paddock.cluster.replicas import ClusterPool
from paddock.config import Settings
from paddock.errors import PaddockError, StartupError
from paddock.fleet import Fleet, Rules, open_catalogue
from paddock.gateway import (
    ConnectionLimits,
    Gate,
    MetricsPage,
    Reloader,
    RequestLimits,
    UsageBook,
    create_app,
    read_keys,
)

_LOOK = 5.0
"""Seconds that the other gateways have to say what they have counted."""


def _not_here() -> Settings:
    raise StartupError("a cluster takes new settings by `paddock cluster deploy`")


class Front:
    """Ray makes one for each gateway, on a running event loop. Its HTTP proxies pass on to it what they are asked."""

    def __init__(self, settings: dict[str, Any], digest: str) -> None:
        self._settings = Settings.model_validate(settings)
        self._digest = digest
        said = self._settings.server
        logs.configure(level=said.log_level, form=said.log_format, disabled=said.log_disable)
        manager, name = self._settings.model_manager, self._settings.cluster.name
        self._fleet = Fleet(
            on_cluster(open_catalogue(manager)),
            Rules.of(manager),
            connect=lambda model: ClusterPool(
                model.name, RayLink(model.name, application_of(name, model.name)), wait_timeout=manager.wait_timeout
            ),
        )
        self._fleet.preload()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._gateways = serve.get_deployment_handle(GATEWAY, app_name=name)

    def __serve_build_asgi_app__(self) -> FastAPI:
        usage = UsageBook()
        server = self._settings.server
        gate = Gate(read_keys(server, gateways=self._settings.cluster.gateways), usage)
        reloader = Reloader(self._fleet, gate, self._settings, _not_here)
        app = create_app(server, self._fleet, reloader, gate, usage)
        self._page: MetricsPage = app.state.metrics_page
        self._page.gather = self._gather
        app.add_middleware(RequestLimits, limits=ConnectionLimits.of(server))
        app.add_middleware(Proxied)
        return app

    async def metrics(self) -> tuple[str, bytes]:
        """What this one counts, for whichever of them is scraped."""
        return self._name, await self._page.own()

    async def _gather(self) -> dict[str, bytes]:
        """One that does not answer is left out, rather than nobody hearing of the others."""
        try:
            with translated("the gateways"):
                handle = self._gateways
                answers = await handle.broadcast("metrics").results_async(timeout_s=_LOOK, return_exceptions=True)
        except (PaddockError, TimeoutError):
            answers = []
        return {self._name: await self._page.own()} | dict(answer for answer in answers if isinstance(answer, tuple))

    async def digest(self) -> str:
        """Of what it was deployed with."""
        return self._digest
