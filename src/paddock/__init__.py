"""Paddock: one server for every GGUF model on a machine."""

__version__ = "0.1.0"
