"""The authenticated caller of a request, and which models it may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from fastapi import Request

from paddock.errors import ModelNotLoaded, PermissionDenied
from paddock.fleet import Fleet, Model
from paddock.gateway.http.scope import CALLER, MODEL
from paddock.types import Origin


@dataclass(frozen=True, slots=True)
class Caller:
    name: str = ""
    """The name of the API key, never the key itself."""
    admin: bool = False
    origin: Origin = field(default_factory=Origin)
    models: tuple[str, ...] | None = None
    """Names or patterns of the models that the caller may use; None: all."""
    metrics: bool = False
    """Whether the caller may read `/metrics` if that requires a key."""
    mcp_servers: tuple[str, ...] = ()
    """Names or patterns of the MCP servers whose tools the caller may use. An admin may use all."""

    def may_use(self, model: Model) -> bool:
        """Whether one of the model's names matches one of those patterns."""
        return self.models is None or any(
            fnmatchcase(name, pattern.removesuffix(".gguf"))
            for name in (model.name, *model.aliases)
            for pattern in self.models
        )

    def may_use_tools_of(self, server: str) -> bool:
        return self.admin or any(fnmatchcase(server, pattern) for pattern in self.mcp_servers)


ANONYMOUS_ADMIN: Final = Caller(admin=True)
"""Every caller of a server without keys."""


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope.get(CALLER, ANONYMOUS_ADMIN)
    return caller


def model_for(request: Request, fleet: Fleet, name: str | None) -> Model:
    """The model of that name. Raises `ModelNotFound`, or `PermissionDenied` if the caller may not use it."""
    model = fleet.catalogue.find(name)
    if not caller_of(request).may_use(model):
        raise PermissionDenied(f"this API key may not use the model {model.name!r}", param="model")
    request.scope[MODEL] = model.name
    return model


def model_to_run(request: Request, fleet: Fleet, name: str | None) -> Model:
    """The same, for a request that runs the model. Raises `ModelNotLoaded` if it must not be loaded for a request.

    llama-server's `?autoload=` in the URL wins over the setting.
    """
    model = model_for(request, fleet, name)
    asked = request.query_params.get("autoload")
    may_load = asked in ("true", "1") if asked else model.settings.autoload
    if not may_load and fleet.is_unloaded(model):
        raise ModelNotLoaded(f"the model {model.name!r} is not loaded: load it with POST /models/load", param="model")
    return model


def require_admin(request: Request) -> None:
    if not caller_of(request).admin:
        raise PermissionDenied("this route requires an admin API key")
