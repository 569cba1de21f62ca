"""Shapes of tool calls. Formats of many model families share a shape and differ in their markers."""

from paddock.text.reply.shapes.braces import BraceCalls
from paddock.text.reply.shapes.calls import Calls
from paddock.text.reply.shapes.headers import HeaderCalls
from paddock.text.reply.shapes.nested_tags import NestedTagCalls
from paddock.text.reply.shapes.objects import ObjectCalls
from paddock.text.reply.shapes.python import PythonCalls
from paddock.text.reply.shapes.tags import TagCalls

__all__ = ["BraceCalls", "Calls", "HeaderCalls", "NestedTagCalls", "ObjectCalls", "PythonCalls", "TagCalls"]
