"""Shapes of tool calls. Formats of several model families share a shape and differ in their markers."""
