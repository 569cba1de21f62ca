"""What a reply may look like, as a grammar: thoughts first, then calls that keep to their schemas, or content that
keeps to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paddock.text.reply.call_grammar import named_so_far, object_pattern, written_call
from paddock.text.reply.lark import Lark, Spelling, escaped
from paddock.text.reply.shapes import Calls, Format, ObjectCalls, PythonCalls
from paddock.types import Constraint, Tool


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What is asked of a reply."""

    must_call: bool = False
    function: str = ""
    """The one to be called; empty for any."""
    parallel_calls: bool = True
    body: Constraint | None = None
    """What content must look like."""
    thoughts: Literal["none", "possible", "begun"] = "none"
    lead: str = ""
    """What the prompt's end has said of it already."""


def reply_constraint(format: Format, tools: Sequence[Tool], rules: ReplyRules, spelling: Spelling) -> Constraint | None:
    """One grammar for all of it, or None where a reply is free.

    A reply that may be anything is held to the format once it begins a call: from there on the parser would read a call
    or call it malformed, so nothing is forbidden that could have been an answer.
    """
    opening = "" if format.content_opening == rules.lead else format.content_opening
    if not tools and (rules.body is None or (rules.thoughts == "none" and not opening)):
        return rules.body
    reply = _Reply(Lark(spelling, loose=not rules.must_call), format, tools, rules)
    reply.lark.rule("start", " ".join(filter(None, (reply.thoughts(), reply.rest()))))
    param = rules.body.param if rules.body is not None and not tools else "tools"
    return Constraint("lark", reply.lark.source, param, tuple(reply.lark.parts))


class _Reply:
    """The parts of the grammar."""

    def __init__(self, lark: Lark, format: Format, tools: Sequence[Tool], rules: ReplyRules) -> None:
        self.lark = lark
        self._format = format
        self._calls = format.calls
        self._rules = rules
        self._tools = [(place, tool) for place, tool in enumerate(tools) if rules.function in ("", tool.name)]
        self._said = rules.lead if rules.thoughts == "none" else format.turn
        """What stands just before what follows the thoughts."""
        if tools:
            each = [
                lark.rule(f"call{place}", written_call(lark, self._calls, tool, place)) for place, tool in self._tools
            ]
            lark.rule("call", " | ".join(each))

    def thoughts(self) -> str:
        reasoning = self._format.reasoning
        if reasoning is None or self._rules.thoughts == "none":
            return ""
        rest = f"{self.lark.until(reasoning.closing)} {self.lark.gap} {self.lark.written(self._format.turn)}"
        if self._rules.thoughts == "begun":
            return rest
        thought = f"{self.lark.written(reasoning.opening.removeprefix(self._format.lead))} {rest}"
        # Some models say that there is none by ending it at once.
        return (
            f"({thought})?"
            if self._format.turn
            else f"({thought} | {self.lark.written(reasoning.closing)} {self.lark.gap})?"
        )

    def rest(self) -> str:
        """What follows the thoughts."""
        if not self._tools:
            return self._body()
        if self._rules.must_call:
            return self._all_calls()
        if self._rules.body is not None:
            return f"({self._all_calls()} | {self._body()})"
        return self._free_json() if self._calls.is_bare else self._free()

    def _body(self) -> str:
        assert self._rules.body is not None, "there are no tools, or there is nothing to keep to"
        opening = "" if self._format.content_opening == self._said else self._format.content_opening
        return f"{self.lark.written(opening)} {self.lark.part(self._rules.body)}"

    def _all_calls(self) -> str:
        """Nothing but calls."""
        format, said = self._format, self._said
        head = format.calls.begin + format.calls.opening + "[" * _is_array(format.calls)
        no_content = ""
        if format.content_closing:
            empty = self.lark.written((format.content_opening + format.content_closing).removeprefix(said))
            no_content = empty if said else f"({empty})?"
        return f"{no_content} {self.lark.spaced(head.removeprefix(said))} call {self._more_calls()}"

    def _more_calls(self) -> str:
        """What follows the first."""
        calls, array = self._calls, _is_array(self._calls)
        between = [self.lark.written(","), self.lark.space(" ")] if array else []
        between += map(self.lark.spaced, [*calls.separator.splitlines(keepends=True), calls.opening])
        one = calls.single or not self._rules.parallel_calls or self._rules.function
        more = "" if one else f"({' '.join(between)} call)*"
        return f"{more} {self.lark.space('') if array else ''} {self.lark.spaced(']' * array + calls.end)}"

    # ── what need not be a call ──────────────────────────────────────────────────────────────────────────────────────

    def _free(self) -> str:
        """Anything until a marker begins a call, and from there on calls."""
        beginnings = self._beginnings()
        markers = [marker for marker, _ in beginnings]
        # The prompt may have ended with the first part of a marker.
        begun = [
            (marker.removeprefix(self._said), rest)
            for marker, rest in beginnings
            if self._said and marker.startswith(self._said)
        ]
        first = [escaped(marker) for marker, _ in begun]
        free = self.lark.without(markers, first=first, but=self._format.silent)
        calls = " | ".join(f"{self.lark.until(marker, first=first)} {rest}" for marker, rest in beginnings)
        at_once = "".join(f"{self.lark.written(marker)} {rest} | " for marker, rest in begun)
        return f"({at_once}{free} ({calls})?)"

    def _beginnings(self) -> list[tuple[str, str]]:
        """The markers by which a call can be told from anything else, and what follows each."""
        calls = self._calls
        trigger, *others = calls.triggers
        thoughts = [self._format.reasoning.opening] if self._format.reasoning is not None else []
        if not any(marker.startswith(trigger) for marker in (*self._format.silent, *thoughts)):
            head = (calls.begin + calls.opening).removeprefix(trigger) + "[" * _is_array(calls)
            rest = f"{self.lark.spaced(head)} call {self._more_calls()}"
            return [(trigger, rest), *((other, f"call {self._more_calls()}") for other in others)]
        # Content begins in the same way, but for the name.
        beginnings: list[tuple[str, str]] = []
        for place, tool in self._tools:
            named = named_so_far(calls, tool.name)
            rest = self.lark.rule(f"rest{place}", written_call(self.lark, calls, tool, place, after=named))
            beginnings.append((trigger + named, f"{rest} {self._more_calls()}"))
        return beginnings

    def _free_json(self) -> str:
        """Anything but an object that begins as a call does; and such calls."""
        assert isinstance(self._calls, ObjectCalls), "no other kind is without a marker"
        opening = object_pattern(self._calls, [tool.name for _, tool in self._tools])
        either = f"(call {self._more_calls()} | {self.lark.without(self._calls.also, first=[opening])})"
        tags = self.lark.one_of(self._calls.also)
        return f"{either} ({tags} {either})?" if tags else either


def _is_array(calls: Calls) -> bool:
    return isinstance(calls, PythonCalls) or (isinstance(calls, ObjectCalls) and calls.array)
