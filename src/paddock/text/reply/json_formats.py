"""Shapes whose arguments are JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddock.text.reply.call_grammar import FunctionGrammar
from paddock.text.reply.format import Format, to_json
from paddock.text.reply.lark import ID_PATTERN, PLACEHOLDER, escape
from paddock.text.reply.reader import LONE_SURROGATE, CallReader, Malformed, Reading, loads

_NAME_KEYS = frozenset({"name", "tool_name", "function"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_SPACE = r"[ \n\t]{0,16}"


@dataclass(frozen=True)
class ObjectFormat(Format):
    """Each call is an object: `{"name": "f", "arguments": {…}}`."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    keyed: bool = False
    """The name is the key of the arguments: `{"f": {…}}`."""
    number_key: str = ""
    """A key that may come first, with a number as a string."""
    id_key: str = ""
    """A key that may come last, with an id."""

    def read(self, reader: CallReader) -> Reading[None]:
        array = yield from reader.follows("[")
        while True:
            yield from _read_object(reader)
            if not array and self.closing.strip():
                yield from reader.close(self.closing)
            reader.end_call()
            if array and (yield from reader.follows("]")):
                return
            if array:
                yield from reader.expect(",")
            elif self.closing.strip() or not (yield from _another_follows(reader)):
                return

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark, id, name = function.lark, "", json.dumps(function.name)
        keys = name if self.keyed else f'"{self.name_key}": {name}, "{self.arguments_key}"'
        opening = lark.literal(f"{{{keys}: ")
        if lark.loose:
            opening = lark.rule(f"OPENING{function.index}", f"/{self.bare_pattern([function.name])}/")
            id = f'(/,{_SPACE}"{self.id_key}"{_SPACE}:{_SPACE}"{ID_PATTERN}"/)?' if self.id_key else ""
        arguments = function.json_arguments()
        return f"{opening} {arguments} {id} {lark.space('')} {lark.spaced('}' + self.closing)}"

    def bare_pattern(self, names: Sequence[str]) -> str:
        """The object up to its arguments, with any whitespace, and with keys that models add before the name."""
        quoted = f"({'|'.join(escape(json.dumps(name)) for name in names)})"
        if self.keyed:
            return _SPACE.join(("", r"\{", quoted, ":", ""))
        extra = _SPACE.join(('("type"', ":", '"function"', ",", ")?"))
        if self.number_key:
            extra += _SPACE.join((f'("{self.number_key}"', ":", f'"{ID_PATTERN}"', ",", ")?"))
        keys = (f'"{self.name_key}"', ":", quoted, ",", f'"{self.arguments_key}"', ":", "")
        return _SPACE.join(("", r"\{", extra, *keys))

    def write(self, calls: Sequence[dict[str, Any]]) -> str:
        if not self.array or self.keyed:
            return super().write(calls)
        return to_json([{self.name_key: call["name"], self.arguments_key: call["arguments"]} for call in calls])


def _another_follows(reader: CallReader) -> Reading[bool]:
    yield from reader.follows(";")
    return (yield from reader.peek()) == "{"


def _read_object(reader: CallReader) -> Reading[None]:
    """Read one call. The keys may be in any order, and may be those of another format."""
    yield from reader.expect("{")
    name, arguments = "", ""
    while True:
        if (yield from reader.peek()) != '"':
            reader.refuse()
        key = json.loads((yield from reader.json()))
        yield from reader.expect(":")
        first = yield from reader.peek()
        if key in _NAME_KEYS and first == '"':
            name = json.loads((yield from reader.json()))
        elif key == "function" and first == "{":
            yield from _read_object(reader)
        elif (key in _ARGUMENTS_KEYS and name) or (key in reader.tools and not name and first == "{"):
            reader.begin_call(name or key)
            yield from _read_arguments(reader)
        else:
            value = yield from reader.json()
            arguments = value if key in _ARGUMENTS_KEYS else arguments
        if (yield from reader.follows("}")):
            break
        yield from reader.expect(",")
    if not reader.call_started:
        reader.begin_call(name)
        reader.add_arguments(_object_text(arguments or "{}"))


def _read_arguments(reader: CallReader) -> Reading[None]:
    """Report the arguments as they arrive. Some models write their JSON as a string."""
    first = yield from reader.peek()
    if first == '"':
        reader.add_arguments(_object_text((yield from reader.json())))
    elif first == "{":
        yield from reader.json(reader.add_arguments)
    else:
        reader.refuse()


def _object_text(text: str) -> str:
    """The JSON of an object, which may be written as a string."""
    value = loads(text)
    if isinstance(value, str):
        text = value
        value = loads(text)
    if not isinstance(value, dict) or LONE_SURROGATE.search(text):
        raise Malformed
    return text


@dataclass(frozen=True)
class HeaderFormat(Format):
    """Each call is a header with the name, and then the arguments: `f:0<args>{…}`."""

    header: str = "{name}"
    """The header as the grammar writes it: `{number}` is any number, `{id}` any id, `{kind}` one of `kinds`."""
    pattern: re.Pattern[str] = re.compile(r"(?P<name>[^\s<\[{]+)")
    """The header as the parser reads it, up to the first brace of the arguments."""
    kinds: tuple[str, ...] = ()

    @property
    def call_markers(self) -> tuple[str, ...]:
        return (*super().call_markers, self.header)

    def read(self, reader: CallReader) -> Reading[None]:
        found = self.pattern.fullmatch((yield from reader.header("{")))
        if found is None:
            reader.refuse()
        reader.at -= 1
        reader.begin_call(found["name"])
        yield from reader.json(reader.add_arguments)
        if self.closing:
            yield from reader.close(self.closing)
        reader.end_call()

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark = function.lark
        header = lark.filled(self.header.replace("{name}", function.name).removeprefix(written), self.kinds)
        return f"{header} {function.json_arguments()} {lark.spaced(self.closing)}"

    def call_prefix(self, name: str) -> str:
        return PLACEHOLDER.split(self.header.replace("{name}", name))[0]
