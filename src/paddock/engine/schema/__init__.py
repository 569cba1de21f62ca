"""JSON schemas rewritten into equivalent ones that a grammar can be made of. Pure: a schema in, a schema out."""

from paddock.engine.schema.rewriting import rewritten, without_year_zero

__all__ = ["rewritten", "without_year_zero"]
