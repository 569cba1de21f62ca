"""Who asks, once their key is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from fastapi import Request

from paddock.errors import PermissionDenied
from paddock.fleet import Fleet, Model
from paddock.types import Origin

CALLER: Final = "paddock.caller"
"""Where a request's scope says who asks."""
MODEL: Final = "paddock.model"
"""Where it says which model it is for."""


@dataclass(frozen=True, slots=True)
class Caller:
    name: str = ""
    """Of the key, never the key."""
    admin: bool = False
    origin: Origin = field(default_factory=Origin)
    models: tuple[str, ...] | None = None
    """Names or patterns of those that may be asked; None: all of them."""
    metrics: bool = False
    """May read `/metrics` where that needs a key."""

    def may_ask(self, model: Model) -> bool:
        """Whether any of the model's names is one of those."""
        return self.models is None or any(
            fnmatchcase(name, pattern.removesuffix(".gguf"))
            for name in (model.name, *model.aliases)
            for pattern in self.models
        )


NOBODY: Final = Caller(admin=True)
"""Everybody, on a server without keys."""


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope.get(CALLER, NOBODY)
    return caller


def owner_of(request: Request) -> str:
    """Whom a limit is for: the key or, on a server without keys, the client's address."""
    return caller_of(request).name or (f"address {request.client.host}" if request.client is not None else "")


def model_for(request: Request, fleet: Fleet, name: str | None) -> Model:
    """The model of that name, if who asks may ask it. Raises `ModelNotFound` or `PermissionDenied`."""
    model = fleet.catalogue.find(name)
    if not caller_of(request).may_ask(model):
        raise PermissionDenied(f"this API key may not ask the model {model.name!r}", param="model")
    request.scope[MODEL] = model.name
    return model


def must_be_admin(request: Request) -> None:
    if not caller_of(request).admin:
        raise PermissionDenied("this needs an admin's API key")
