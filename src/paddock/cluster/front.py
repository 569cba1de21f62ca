"""The gateway on a cluster: the same HTTP surface, with models that are elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from paddock.cluster.link import RayLink
from paddock.cluster.names import application_of, on_cluster
from paddock.config import Settings
from paddock.fleet import Fleet, Rules, open_catalogue
from paddock.gateway import Gate, Reloader, UsageBook, create_app, read_keys


class Front:
    """Ray makes one for each gateway, on a running event loop. Its HTTP proxies pass on to it what they are asked."""

    def __init__(self, settings: dict[str, Any], digest: str) -> None:
        self._settings = Settings.model_validate(settings)
        self._digest = digest
        manager, name = self._settings.model_manager, self._settings.cluster.name
        self._fleet = Fleet(
            on_cluster(open_catalogue(manager)),
            Rules.of(manager),
            connect=lambda model: RayLink(model.name, application_of(name, model.name)),
        )
        self._fleet.preload()

    def __serve_build_asgi_app__(self) -> FastAPI:
        usage = UsageBook()
        server = self._settings.server
        gate = Gate(read_keys(server), usage)
        reloader = Reloader(self._fleet, gate, self._settings, lambda: self._settings)
        return create_app(server, self._fleet, reloader, gate, usage)

    async def digest(self) -> str:
        """Of what it was deployed with."""
        return self._digest
