"""Calls that are a list of function calls in Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddock.text.reply.call_grammar import Argument, FunctionGrammar, enum_strings, is_plain_string
from paddock.text.reply.call_reader import CallReader
from paddock.text.reply.reader import Reading, dumps
from paddock.text.reply.shapes.calls import Calls, to_json
from paddock.text.reply.values import read_literal

_KEY = re.compile(r"[\w.$-]*")
_STRING = r"/'([^'\\]|\\[nt'\"\\])*'/"


@dataclass(frozen=True)
class PythonCalls(Calls):
    """`[f(key='value'), g()]`"""

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
