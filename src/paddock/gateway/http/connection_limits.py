"""The limits of connections, from the settings."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.config import ServerSettings
from paddock.gateway.http.connection_slots import RequestTableLimits


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int
    per_address: int
    places: RequestTableLimits
    header_bytes: int
    header_count: int
    url_bytes: int
    header_timeout: float
    write_timeout: float

    @classmethod
    def of(cls, settings: ServerSettings, possible: int | None = None) -> ConnectionLimits:
        """`possible`: the number of connections that the process can open, if known."""
        connections = min(settings.max_connections, possible or settings.max_connections)
        half = max(1, connections // 2)
        return cls(
            connections=connections,
            per_address=min(settings.max_connections_per_address or half, connections),
            places=RequestTableLimits(
                connections=connections,
                per_key=min(settings.max_connections_per_key or half, connections),
                watchers_per_key=settings.max_watchers_per_key,
            ),
            header_bytes=settings.max_header_bytes,
            header_count=settings.max_header_count,
            url_bytes=settings.max_url_bytes,
            header_timeout=settings.header_timeout,
            write_timeout=settings.write_timeout,
        )
