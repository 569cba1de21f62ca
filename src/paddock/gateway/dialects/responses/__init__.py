"""OpenAI's Responses API, stateless: a row of items in, a row of items out."""

from paddock.gateway.dialects.responses.routes import response_routes

__all__ = ["response_routes"]
