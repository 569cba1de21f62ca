"""The interface of a shape: how tool calls are parsed, constrained by a grammar, and written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paddock.text.reply.call_grammar import FunctionGrammar
from paddock.text.reply.reader import CallReader, Reading


@dataclass(frozen=True)
class Calls(ABC):
    """How a model family writes tool calls. A subclass is a shape, an instance has the markers of a format.

    Markers have the whitespace that models usually write. The parser accepts any whitespace around them.
    """

    begin: str = ""
    """The marker before all calls."""
    end: str = ""
    opening: str = ""
    """The marker before each call."""
    closing: str = ""
    separator: str = ""
    other_openings: tuple[str, ...] = ()
    """Further markers that may start a call."""
    single: bool = False
    """A reply has at most one call."""
    array: bool = False
    """The calls are the items of an array in brackets, with commas between them."""

    @abstractmethod
    def read(self, reader: CallReader) -> Reading[None]:
        """Parse one call, or the whole array, after `opening`. Raises `Malformed` if it is none."""

    @abstractmethod
    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        """A Lark expression for one call after `opening`, with `closing`. `written` is a prefix of the call that the
        grammar contains already (see `call_prefix`).
        """

    def write(self, calls: Sequence[dict[str, Any]]) -> str:
        """Earlier calls as the model would have written them, for templates that leave them out."""
        return "\n".join(to_json({"name": call["name"], "arguments": call["arguments"]}) for call in calls)

    def call_prefix(self, name: str) -> str:
        """The first part of a call of this function, up to where the function is certain. Only formats need it whose
        content starts with `opening` too.
        """
        raise NotImplementedError

    def bare_pattern(self, names: Sequence[str]) -> str:
        """A regular expression for the start of a call of one of these functions. Only formats without markers need
        it.
        """
        raise NotImplementedError

    @cached_property
    def start_markers(self) -> tuple[str, ...]:
        """The markers that start the first call."""
        return tuple(filter(None, ((self.begin or self.opening).strip(), *self.other_openings)))

    @property
    def is_bare(self) -> bool:
        """Calls have no marker: a reply that starts with JSON may be a call."""
        return not (self.begin or self.opening)

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers, also those inside calls. Control tokens among them are shown as text."""
        return (self.begin, self.end, self.opening, self.closing, self.separator, *self.other_openings)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
