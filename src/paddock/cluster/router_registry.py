"""The routers of this process, by application.

A module of its own, because Ray pickles a router's class by value, with its module's variables: a variable there would
be a private copy.
"""

from __future__ import annotations

from typing import Any

_ROUTERS: dict[str, Any] = {}


def register(application: str, router: Any) -> None:
    _ROUTERS[application] = router


def router_of(application: str) -> Any:
    """The application's router, or None before Ray has created it."""
    return _ROUTERS.get(application)
