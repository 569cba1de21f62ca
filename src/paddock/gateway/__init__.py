"""HTTP in, SSE out. Knows models by name only; everything native is a process away."""

from paddock.gateway.server import serve

__all__ = ["serve"]
