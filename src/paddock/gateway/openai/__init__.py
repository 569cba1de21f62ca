"""OpenAI's dialect."""

from paddock.gateway.openai.embeddings import embedding_routes
from paddock.gateway.openai.responses import response_routes
from paddock.gateway.openai.routes import openai_routes

__all__ = ["embedding_routes", "openai_routes", "response_routes"]
