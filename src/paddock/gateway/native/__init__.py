"""llama-server's own dialect."""

from paddock.gateway.native.routes import native_routes

__all__ = ["native_routes"]
