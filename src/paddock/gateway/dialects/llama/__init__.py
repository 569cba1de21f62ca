"""llama-server's own dialect."""

from paddock.gateway.dialects.llama.routes import native_routes

__all__ = ["native_routes"]
