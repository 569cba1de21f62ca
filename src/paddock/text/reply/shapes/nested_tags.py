"""Calls whose arguments stand between tags with their names, and so do the members of objects and arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paddock.text.reply.call_grammar import FunctionGrammar, is_string, nested_items, nested_members
from paddock.text.reply.call_reader import CallReader
from paddock.text.reply.reader import Reading, dumps
from paddock.text.reply.schemas import has_type, item_schema, member_schema
from paddock.text.reply.shapes.calls import Calls
from paddock.text.reply.values import to_json


@dataclass(frozen=True)
class NestedTagCalls(Calls):
    """`<invoke name="f"><key><item>value</item></key></invoke>`"""

    name_end: str = ""
    prefix: str = ""
    """The text before every tag."""

    def closing_tag(self, name: str) -> str:
        return f"{self.prefix}</{name}>"

    def read(self, reader: CallReader) -> Reading[None]:
        name = (yield from reader.header(self.name_end.strip())).strip()
        yield from reader.call_by_argument(name, self.closing, lambda: self._read_argument(reader, name))

    def _read_argument(self, reader: CallReader, name: str) -> Reading[tuple[str, str]]:
        schema = reader.tools[name].parameters
        yield from reader.expect(self.prefix)
        key = yield from _read_tag(reader)
        return key, dumps((yield from self._read_value(reader, key, member_schema(schema, key, schema), schema)))

    def _read_value(self, reader: CallReader, name: str, schema: Any, root: Mapping[str, Any]) -> Reading[Any]:
        """Read the content of the element with this name, and its closing tag."""
        if has_type(schema, "string", root):
            return (yield from reader.until(self.closing_tag(name)))
        closing = self.closing_tag(name).removeprefix(self.prefix)
        is_array = has_type(schema, "array", root)
        is_object = has_type(schema, "object", root)
        text = yield from reader.until(self.prefix)
        if (yield from reader.follows(closing)):
            if not text.strip() and (is_array or is_object):
                return [] if is_array else {}
            return json.loads(to_json(text, schema, root))
        if text.strip():
            reader.refuse()
        names: list[str] = []
        values: list[Any] = []
        while True:
            inner = yield from _read_tag(reader)
            inner_schema = item_schema(schema, root) if is_array else member_schema(schema, inner, root)
            names.append(inner)
            values.append((yield from self._read_value(reader, inner, inner_schema, root)))
            yield from reader.expect(self.prefix)
            if (yield from reader.follows(closing)):
                break
        if is_array or (set(names) == {"item"} and not is_object):
            return values
        if len(set(names)) < len(names):
            reader.refuse()
        return dict(zip(names, values, strict=True))

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark = function.lark
        members = function.members(
            function.arguments(), lambda one: self._element(function, one.name, one.schema, one.param)
        )
        return f"{lark.literal(function.name + self.name_end)} {members} {lark.spaced(self.closing)}"

    def _element(self, function: FunctionGrammar, name: str, schema: Any, param: str, depth: int = 0) -> str:
        """A value between tags. It is JSON if its schema has restrictions that tags cannot express."""
        lark, text = function.lark, function.resolve(schema)
        opening = lark.literal(f"{self.prefix}<{name}>")
        if is_string(text):
            return f"{opening} {function.text(text, self.closing_tag(name), param)}"
        if (items := nested_items(schema, depth)) is not None:
            inside = f"({self._element(function, 'item', items, param, depth + 1)})*"
        elif (members := nested_members(schema, depth, param)) is not None:
            inside = function.members(
                members, lambda one: self._element(function, one.name, one.schema, param, depth + 1)
            )
        else:
            inside = function.json_value(schema, param)
        return f"{opening} {inside} {lark.literal(self.closing_tag(name))}"


def _read_tag(reader: CallReader) -> Reading[str]:
    """Read an opening tag, after its prefix, and return its name."""
    yield from reader.expect("<")
    return (yield from reader.header(">"))
