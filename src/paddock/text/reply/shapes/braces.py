"""Calls that are a name and an object like JSON, with bare keys and another quotation mark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from paddock.text.reply.call_grammar import Argument, FunctionGrammar, is_plain_string, nested_items, nested_members
from paddock.text.reply.call_reader import CallReader
from paddock.text.reply.reader import BARE_VALUE, Reading, dumps, loads
from paddock.text.reply.shapes.calls import Calls

_BARE_KEY = re.compile(r"[\w.$-]*")


@dataclass(frozen=True)
class BraceCalls(Calls):
    """`f{key:<|"|>value<|"|>}`"""

    quote: str = '"'

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, self.quote)

    def read(self, reader: CallReader) -> Reading[None]:
        name = yield from reader.header("{")
        reader.at -= 1
        reader.begin_call(name.strip())
        reader.add_arguments(dumps((yield from self._read_value(reader))))
        yield from reader.close(self.closing)
        reader.end_call()

    def _read_value(self, reader: CallReader) -> Reading[Any]:
        if (yield from reader.follows(self.quote)):
            return (yield from reader.until(self.quote))
        if (yield from reader.peek()) == '"':
            return loads((yield from reader.json()))
        if (yield from reader.follows("{")):
            pairs = yield from reader.items("}", lambda: self._read_pair(reader))
            if len(dict(pairs)) < len(pairs):
                reader.refuse()
            return dict(pairs)
        if (yield from reader.follows("[")):
            return (yield from reader.items("]", lambda: self._read_value(reader)))
        return loads((yield from reader.run_of(BARE_VALUE)))

    def _read_pair(self, reader: CallReader) -> Reading[tuple[str, Any]]:
        if (yield from reader.follows(self.quote)):
            key = yield from reader.until(self.quote)
        elif (yield from reader.peek()) == '"':
            key = str(loads((yield from reader.json())))
        else:
            key = yield from reader.run_of(_BARE_KEY)
        yield from reader.expect(":")
        return key, (yield from self._read_value(reader))

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark = function.lark
        members = self._members(function, function.arguments(), 0)
        return f"{lark.literal(function.name + '{')} {members} {lark.literal('}' + self.closing)}"

    def _members(self, function: FunctionGrammar, arguments: Sequence[Argument], depth: int) -> str:
        """Templates sort the keys."""
        lark = function.lark
        return function.members(
            sorted(arguments, key=attrgetter("name")),
            lambda one: f"{lark.literal(f'{one.name}:')} {self._value(function, one.schema, one.param, depth)}",
            separator=lark.literal(","),
        )

    def _value(self, function: FunctionGrammar, schema: Any, param: str, depth: int) -> str:
        """A value in this notation, or JSON if its schema has further restrictions."""
        lark, text = function.lark, function.resolve(schema)
        if is_plain_string(text, enum=True):
            return f"{lark.literal(self.quote)} {function.text(text, self.quote, param)}"
        if (items := nested_items(schema, depth)) is not None:
            item = lark.shared("item", self._value(function, items, param, depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        if (members := nested_members(schema, depth, param)) is not None:
            return f'"{{" {self._members(function, members, depth + 1)} "}}"'
        return function.json_value(schema, param)
