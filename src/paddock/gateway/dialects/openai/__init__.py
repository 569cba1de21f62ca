"""OpenAI's dialect."""

from paddock.gateway.dialects.openai.embeddings import embedding_routes
from paddock.gateway.dialects.openai.routes import openai_routes
from paddock.gateway.dialects.responses import response_routes

__all__ = ["embedding_routes", "openai_routes", "response_routes"]
