"""Calls that are a header with the function's name, and then the arguments as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paddock.text.reply.call_grammar import FunctionGrammar
from paddock.text.reply.call_reader import CallReader
from paddock.text.reply.lark import PLACEHOLDER
from paddock.text.reply.reader import Reading
from paddock.text.reply.shapes.calls import Calls


@dataclass(frozen=True)
class HeaderCalls(Calls):
    """`f:0<args>{…}`"""

    header: str = "{name}"
    """The header as the grammar writes it: `{number}` is any number, `{id}` any id, `{kind}` one of `kinds`."""
    pattern: re.Pattern[str] = re.compile(r"(?P<name>[^\s<\[{]+)")
    """The header as the parser reads it, up to the first brace of the arguments."""
    kinds: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, self.header)

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
