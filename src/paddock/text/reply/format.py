"""The interface of a format: how reasoning and tool calls are written, parsed and constrained by a grammar."""

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
class Reasoning:
    """The markers around reasoning."""

    opening: str
    closing: str


@dataclass(frozen=True)
class ReplyFormat:
    """How a model family writes replies, apart from tool calls."""

    template_markers: tuple[str, ...] = ()
    """A chat template whose source contains all of these uses the format."""
    reasoning: Reasoning | None = None
    """None: detected by the markers in the template."""
    skipped_markers: tuple[str, ...] = ()
    """Markers that the parser drops."""
    reply_prefix: str = ""
    """The start of the reply, if the prompt ends with it."""
    after_reasoning: str = ""
    """The marker between reasoning and the rest of the reply, which is again the `reply_prefix`."""
    content_opening: str = ""
    """The marker before content, after the `reply_prefix` or equal to it."""
    content_closing: str = ""
    """The marker between content and a call."""
    always_reasons: bool = False
    """An empty reasoning block does not turn reasoning off."""

    @property
    def markers(self) -> tuple[str, ...]:
        reasoning = (self.reasoning.opening, self.reasoning.closing) if self.reasoning is not None else ()
        return (*self.skipped_markers, self.reply_prefix, self.after_reasoning, self.content_opening, *reasoning)


@dataclass(frozen=True)
class Format(ReplyFormat, ABC):
    """How a model family writes replies and tool calls. A subclass is a shape of calls, an instance adds the markers.

    Markers have the whitespace that models usually write. The parser accepts any whitespace around them.
    """

    section: str = "{calls}"
    """All calls, as an example with markers."""
    call: str = "{call}"
    """One call, as an example with markers."""
    separator: str = ""
    """The marker between calls."""
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
    def begin(self) -> str:
        return self.section.partition("{")[0]

    @cached_property
    def end(self) -> str:
        return self.section.rpartition("}")[2]

    @cached_property
    def opening(self) -> str:
        return self.call.partition("{")[0]

    @cached_property
    def closing(self) -> str:
        return self.call.rpartition("}")[2]

    @cached_property
    def start_markers(self) -> tuple[str, ...]:
        """The markers that start the first call."""
        return tuple(filter(None, ((self.begin or self.opening).strip(), *self.other_openings)))

    @property
    def is_bare(self) -> bool:
        """Calls have no marker: a reply that starts with JSON may be a call."""
        return not (self.begin or self.opening)

    @property
    def call_markers(self) -> tuple[str, ...]:
        """All markers of calls, also those inside. Control tokens among them are shown as text."""
        return (self.section, self.call, self.separator, *self.other_openings)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
