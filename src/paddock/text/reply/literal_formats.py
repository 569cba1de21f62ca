"""Shapes whose arguments are in a notation other than JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from paddock.text.reply.call_grammar import (
    Argument,
    FunctionGrammar,
    enum_strings,
    is_plain_string,
    nested_items,
    nested_members,
)
from paddock.text.reply.format import Format, to_json
from paddock.text.reply.reader import BARE_VALUE, CallReader, Reading, dumps, loads
from paddock.text.reply.values import read_literal

_KEY = re.compile(r"[\w.$-]*")
_STRING = r"/'([^'\\]|\\[nt'\"\\])*'/"


@dataclass(frozen=True)
class BraceFormat(Format):
    """Like JSON, with bare keys and another quotation mark: `f{key:<|"|>value<|"|>}`."""

    quote: str = '"'

    @property
    def call_markers(self) -> tuple[str, ...]:
        return (*super().call_markers, self.quote)

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
            key = yield from reader.run_of(_KEY)
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


@dataclass(frozen=True)
class PythonFormat(Format):
    """A list of function calls in Python: `[f(key='value'), g()]`."""

    array: bool = True

    def read(self, reader: CallReader) -> Reading[None]:
        array = yield from reader.follows("[")
        while True:
            name = (yield from reader.header("(")).strip()
            yield from reader.call_by_argument(name, ")", lambda: _read_argument(reader), comma=",")
            if not array or (yield from reader.follows("]")):
                return
            yield from reader.expect(",")

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark = function.lark
        members = function.members(
            function.arguments(),
            lambda argument: f"{lark.literal(f'{argument.name}=')} {_value(function, argument)}",
            separator=lark.literal(", "),
        )
        return f"{lark.literal(function.name + '(')} {members} {lark.literal(')')}"

    def write(self, calls: Sequence[dict[str, Any]]) -> str:
        return "[" + ", ".join(f"{call['name']}({_keywords(call['arguments'])})" for call in calls) + "]"


def _read_argument(reader: CallReader) -> Reading[tuple[str, str]]:
    key = yield from reader.run_of(_KEY)
    yield from reader.expect("=")
    return key, dumps((yield from read_literal(reader)))


def _value(function: FunctionGrammar, argument: Argument) -> str:
    """A value as JSON. Simple strings and constants may be in Python's notation."""
    lark, schema = function.lark, function.resolve(argument.schema)
    value = function.json_value(schema, argument.param)
    if is_plain_string(schema, enum=False):
        return f"({value} | {lark.shared('TEXT', _STRING)})"
    if is_plain_string(schema, enum=True):
        words = [f"'{word}'" for word in enum_strings(schema, argument.param) if not set(word) & set("'\\\n")]
        return f"({' | '.join([value, *map(lark.literal, words)])})"
    return function.or_python_constant(schema, value)


def _keywords(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={to_json(value)}" for name, value in arguments.items())
