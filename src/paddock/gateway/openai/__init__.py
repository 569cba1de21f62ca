"""OpenAI's dialect."""

from paddock.gateway.openai.routes import openai_routes

__all__ = ["openai_routes"]
