"""Rewrites JSON schemas into equivalent ones that llguidance can compile. Pure."""

from paddock.engine.schema.rewriting import rewritten, without_year_zero

__all__ = ["rewritten", "without_year_zero"]
