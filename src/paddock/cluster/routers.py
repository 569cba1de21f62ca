"""The routers of this process, by application.

In a module of its own, because Ray takes a router's class along by value, with its module's variables: what the class
itself would write there nobody else would see.
"""

from __future__ import annotations

from typing import Any

_ROUTERS: dict[str, Any] = {}


def register(application: str, router: Any) -> None:
    _ROUTERS[application] = router


def router_of(application: str) -> Any:
    """The one that chooses among its replicas, or None before Ray has made one."""
    return _ROUTERS.get(application)
