"""llama-server's own dialect."""

from paddock.gateway.native.completion import completion_routes
from paddock.gateway.native.routes import native_routes

__all__ = ["completion_routes", "native_routes"]
