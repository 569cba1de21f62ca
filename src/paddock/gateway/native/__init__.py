"""llama-server's own dialect."""

from paddock.gateway.native.completion import completion_routes
from paddock.gateway.native.embedding import native_embedding_routes
from paddock.gateway.native.rerank import rerank_routes
from paddock.gateway.native.routes import native_routes

__all__ = ["completion_routes", "native_embedding_routes", "native_routes", "rerank_routes"]
