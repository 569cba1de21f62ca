"""Anthropic's dialect: messages of blocks."""

from paddock.gateway.dialects.anthropic.routes import anthropic_routes

__all__ = ["anthropic_routes"]
