"""Shapes whose arguments are between tags: strings as plain text, other values as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paddock.text.reply.call_grammar import (
    Argument,
    FunctionGrammar,
    is_string,
    nested_items,
    nested_members,
    type_name,
)
from paddock.text.reply.format import Format
from paddock.text.reply.reader import CallReader, Reading, dumps
from paddock.text.reply.schemas import has_type, item_schema, member_schema
from paddock.text.reply.values import to_json

_ANY_PLACEHOLDER = re.compile(r"\{\w+\}")


@dataclass(frozen=True)
class TagFormat(Format):
    """`<function=f><parameter=key>value</parameter></function>`

    `call` has `{name}` and `{arguments}`, and may have `{number}` and the name again. `argument` has `{key}` and
    `{value}`; before the value it may have `{is_string}` (true or false) or `{type}`.
    """

    argument: str = ""
    cdata: bool = False
    """Strings may be in `<![CDATA[` and `]]>`."""

    @property
    def call_markers(self) -> tuple[str, ...]:
        return (*super().call_markers, self.argument)

    @cached_property
    def _argument_parts(self) -> tuple[str, str, str, str]:
        """The markers before and after the key, and before and after the value."""
        key_opening, between, value_closing = re.split(r"\{key\}|\{value\}", self.argument)
        # A line end inside is optional for the model.
        cut = between.rstrip("\n").rfind("\n") + 1
        return key_opening, between[:cut], between[cut:], value_closing

    # ── parser ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, reader: CallReader) -> Reading[None]:
        name = yield from self._read_name(reader)
        yield from reader.call_by_argument(name, self.closing, lambda: self._read_argument(reader, name))

    def _read_name(self, reader: CallReader) -> Reading[str]:
        first, *others = _ANY_PLACEHOLDER.split(_name_end(self.call).strip())
        if not first:
            name = yield from reader.header("<")
            reader.at -= 1
            return name.strip()
        name = yield from reader.header(first)
        for other in others:
            yield from reader.header(other)
        return name.strip()

    def _read_argument(self, reader: CallReader, name: str) -> Reading[tuple[str, str]]:
        key_opening, _, value_opening, value_closing = self._argument_parts
        value_marker = re.split(r'\{(?:is_string|type)\}"', value_opening)[-1].strip().removeprefix('"')
        yield from reader.expect(key_opening)
        attributes = yield from reader.header(value_marker)
        key = re.split(r'["<]', attributes)[0].strip()
        value = yield from self._read_value(reader, value_closing)
        if 'string="true"' in attributes or 'type="string"' in attributes:
            return key, dumps(value)
        schema = reader.tools[name].parameters
        return key, to_json(value, member_schema(schema, key, schema), schema)

    def _read_value(self, reader: CallReader, closing: str) -> Reading[str]:
        begin = reader.at
        if self.cdata and (yield from reader.follows("<![CDATA[")):
            text = yield from reader.until("]]>")
            yield from reader.expect(closing)
            return text
        reader.at = begin
        raw = yield from reader.until(closing.strip())
        return raw.removeprefix("\n").removesuffix("\n")

    # ── grammar ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark = function.lark
        head = (function.name + _name_end(self.call).replace("{name}", function.name)).removeprefix(written)
        members = function.members(function.arguments(), lambda argument: self._argument(function, argument))
        rest = lark.shared("arguments", f"{members} {lark.spaced(self.closing)}")
        return f"{lark.filled(head, spaced=True)} {rest}"

    def call_prefix(self, name: str) -> str:
        return name + _name_end(self.call).partition("{")[0]

    def _argument(self, function: FunctionGrammar, argument: Argument) -> str:
        lark, schema = function.lark, function.resolve(argument.schema)
        key_opening, key_end, value_opening, value_closing = self._argument_parts
        key = lark.spaced(key_opening + argument.name + key_end)
        opening = value_opening.replace("{is_string}", "true" if is_string(schema) else "false")
        opening = opening.replace("{type}", type_name(schema))
        if not is_string(schema):
            value = function.or_python_constant(schema, function.json_value(schema, argument.param))
            return f"{key} {lark.spaced(opening)} {value} {lark.spaced(value_closing)}"
        # A string is all that is between the tags, but for one line end at each side.
        line = r'"\n"?' if opening.endswith("\n") else ""
        text = function.text(schema, value_closing.strip("\n"), argument.param, line=line)
        after = lark.spaced("\n") if value_closing.endswith("\n") else ""
        return f"{key} {lark.literal(opening.strip(chr(10)))} {text} {after}"


@dataclass(frozen=True)
class NestedTagFormat(Format):
    """Tags have the names of arguments, and those of the members of objects and arrays:
    `<invoke name="f"><key><item>value</item></key></invoke>`.
    """

    prefix: str = ""
    """The text before every tag."""

    def closing_tag(self, name: str) -> str:
        return f"{self.prefix}</{name}>"

    def read(self, reader: CallReader) -> Reading[None]:
        name = (yield from reader.header(_name_end(self.call).strip())).strip()
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
        return f"{lark.literal(function.name + _name_end(self.call))} {members} {lark.spaced(self.closing)}"

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


def _name_end(call: str) -> str:
    """The text between the name and the arguments."""
    return call.partition("{name}")[2].partition("{arguments}")[0]
