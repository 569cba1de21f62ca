"""How the events of a stream are separated: server-sent events, or one JSON value per line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final


class Framing(ABC):
    media_type: ClassVar[str]
    keep_alive: ClassVar[bytes] = b""
    """Sent while a stream is silent; empty if the format has nothing that clients skip."""

    @abstractmethod
    def event(self, data: bytes, name: str = "") -> bytes:
        """One event. `data` is JSON."""

    def comment(self, text: str) -> bytes:
        """Text that clients skip; empty if the format has no comments."""
        return b""


class ServerSentEvents(Framing):
    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def event(self, data: bytes, name: str = "") -> bytes:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data

    def comment(self, text: str) -> bytes:
        return f": {text}\n\n".encode()


class JSONLines(Framing):
    media_type = "application/x-ndjson"

    def event(self, data: bytes, name: str = "") -> bytes:
        return data + b"\n"


SSE: Final = ServerSentEvents()
NDJSON: Final = JSONLines()
