"""Rewrites JSON schemas into equivalent ones that llguidance can compile. Pure."""

from paddock.engine.schema.facts import objects_in
from paddock.engine.schema.rewriting import rewritten, without_year_zero

__all__ = ["objects_in", "rewritten", "without_year_zero"]
