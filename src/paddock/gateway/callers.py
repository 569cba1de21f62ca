"""Who asks, once their key is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fastapi import Request

from paddock.types import Origin

CALLER: Final = "paddock.caller"
"""Where a request's scope says who asks."""


@dataclass(frozen=True, slots=True)
class Caller:
    name: str = ""
    """Of the key, never the key."""
    admin: bool = False
    origin: Origin = field(default_factory=Origin)


NOBODY: Final = Caller(admin=True)
"""Everybody, on a server without keys."""


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope.get(CALLER, NOBODY)
    return caller
