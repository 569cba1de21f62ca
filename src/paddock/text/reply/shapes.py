"""The shapes in which models write what is more than words: thoughts, and tool calls of several kinds.

Whitespace in their markers is what models write; what they read as is the same with or without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Calls:
    """Where tool calls begin and end: `begin` and `end` stand around all, `opening` and `closing` around each."""

    signs: tuple[str, ...] = ()
    """What a template has in its source that speaks this format: all of these."""
    begin: str = ""
    end: str = ""
    opening: str = ""
    closing: str = ""
    separator: str = ""
    also: tuple[str, ...] = ()
    """Other ways in which a call may begin."""
    single: bool = False
    """There is one call in a reply."""

    @cached_property
    def triggers(self) -> tuple[str, ...]:
        """What begins the first call."""
        return tuple(filter(None, ((self.begin or self.opening).strip(), *self.also)))

    @property
    def is_bare(self) -> bool:
        """Whether a reply that is JSON from its first character on is a call, without a marker."""
        return not (self.begin or self.opening)

    @property
    def markers(self) -> tuple[str, ...]:
        """All that is written around calls and inside them."""
        return (self.begin, self.end, self.opening, self.closing, self.separator, *self.also)


@dataclass(frozen=True)
class ObjectCalls(Calls):
    """Each call is a JSON object with the function's name and its arguments."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    array: bool = False
    """They stand in a JSON array."""
    keyed: bool = False
    """The name is itself the key of the arguments."""
    number_key: str = ""
    """What may come first, with a number that is a text."""
    id_key: str = ""
    """What may come last, with an id."""


@dataclass(frozen=True)
class NamedCalls(Calls):
    """Each call is a header with the name and then the arguments as JSON."""

    header: str = "{name}"
    """As written; `{number}` is any number, `{id}` any id, `{kind}` what may be said there of the arguments."""
    kinds: tuple[str, ...] = ()
    pattern: re.Pattern[str] = re.compile(r"(?P<name>[^\s<\[{]+)")
    """As read, up to the arguments' first brace."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, self.header)


@dataclass(frozen=True)
class TaggedCalls(Calls):
    """Each call is the name and then every argument between tags of its own: texts as they are, all else as JSON."""

    name_end: str = ""
    """As written; `{number}` is any number, `{name}` the name again."""
    key_opening: str = ""
    key_closing: str = ""
    value_opening: str = ""
    """As written; `{text}` is whether the value is a text, `{type}` the name of its type."""
    value_closing: str = ""
    cdata: bool = False
    """Texts may stand in `<![CDATA[` and `]]>`."""

    @property
    def markers(self) -> tuple[str, ...]:
        inside = (self.name_end, self.key_opening, self.key_closing, self.value_opening, self.value_closing)
        return (*super().markers, *inside)

    @cached_property
    def value_mark(self) -> str:
        """What ends a key and begins its value, as read: some formats say before it what kind of value it is."""
        return re.split(r'\{(?:text|type)\}"', self.value_opening.strip())[-1]


@dataclass(frozen=True)
class BracedCalls(Calls):
    """Each call is the name and then an object that is JSON but for bare keys and a quotation mark of its own."""

    quote: str = '"'

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, self.quote)


@dataclass(frozen=True)
class NestedCalls(Calls):
    """Each call is the name and then every argument between tags named after it, with tags in tags for the members of
    objects and for the items of arrays.
    """

    name_end: str = ""
    prefix: str = ""
    """What stands before every tag."""

    def opens(self, name: str) -> str:
        return f"{self.prefix}<{name}>"

    def closes(self, name: str) -> str:
        return f"{self.prefix}</{name}>"


@dataclass(frozen=True)
class PythonCalls(Calls):
    """The calls are a list in Python, with arguments by their names."""


@dataclass(frozen=True)
class Reasoning:
    """Thoughts stand between these."""

    opening: str
    closing: str


@dataclass(frozen=True)
class Format:
    """How one family of models writes its replies."""

    calls: Calls
    reasoning: Reasoning | None = None
    silent: tuple[str, ...] = ()
    """Markers that are neither content nor the beginning of anything."""
    lead: str = ""
    """The part of such a marker or trigger that the prompt's end has said already."""
    turn: str = ""
    """What stands between thoughts and what follows them, which is then at the same place as after the lead."""
    content_opening: str = ""
    """What stands before content, after the lead; it may be the lead itself."""
    content_closing: str = ""
    """What stands after content where a call follows."""
    must_think: bool = False
    """A thought cannot be left out by writing an empty one."""
