"""The grammar of a whole reply: reasoning, then calls that match their schemas, or content that matches its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paddock.text.reply.call_grammar import FunctionGrammar
from paddock.text.reply.format import Format
from paddock.text.reply.lark import LarkBuilder, Spelling, escape
from paddock.types import ChatPrompt, Constraint


def reply_constraint(
    format: Format,
    prompt: ChatPrompt,
    spelling: Spelling,
    *,
    body: Constraint | None = None,
    reasoning: Literal["none", "possible", "started"] = "none",
    reply_prefix: str = "",
) -> Constraint | None:
    """One grammar for the whole reply, or None if the reply is free.

    `body` is the constraint on content, `reply_prefix` the start of the reply that the prompt contains already. A reply
    that need not call is free until it starts a call. From there on it must be a valid call, because the parser would
    otherwise report it as malformed.
    """
    opening = "" if format.content_opening == reply_prefix else format.content_opening
    if not prompt.tools and (body is None or (reasoning == "none" and not opening)):
        return body
    lark = LarkBuilder(spelling, loose=not prompt.must_call)
    reply = _Reply(lark, format, prompt, body, reply_prefix if reasoning == "none" else format.after_reasoning)
    lark.rule("start", " ".join(filter(None, (reply.reasoning(reasoning), reply.rest()))))
    param = body.param if body is not None and not prompt.tools else "tools"
    return Constraint("lark", lark.source, param, tuple(lark.parts))


@dataclass(slots=True)
class _Reply:
    lark: LarkBuilder
    format: Format
    prompt: ChatPrompt
    body: Constraint | None
    written: str
    """The text just before the reply, after reasoning."""
    functions: list[FunctionGrammar] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, tool in enumerate(self.prompt.tools):
            if self.prompt.function in ("", tool.name):
                self.functions.append(FunctionGrammar(self.lark, tool, index))
        if self.functions:
            each = [self.lark.rule(f"call{one.index}", self.format.grammar(one)) for one in self.functions]
            self.lark.rule("call", " | ".join(each))

    def reasoning(self, state: Literal["none", "possible", "started"]) -> str:
        lark, format, reasoning = self.lark, self.format, self.format.reasoning
        if reasoning is None or state == "none":
            return ""
        rest = f"{lark.until(reasoning.closing)} {lark.gap} {lark.literal(format.after_reasoning)}"
        if state == "started":
            return rest
        block = f"{lark.literal(reasoning.opening.removeprefix(format.reply_prefix))} {rest}"
        if format.after_reasoning:
            return f"({block})?"
        # Some models skip reasoning by its closing marker alone.
        return f"({block} | {lark.literal(reasoning.closing)} {lark.gap})?"

    def rest(self) -> str:
        """The reply after reasoning."""
        if not self.functions:
            return self._content()
        if self.prompt.must_call:
            return self._only_calls()
        if self.body is not None:
            return f"({self._only_calls()} | {self._content()})"
        return self._free_or_bare_calls() if self.format.is_bare else self._free_then_calls()

    def _content(self) -> str:
        assert self.body is not None, "a reply without tools and body has no grammar"
        opening = "" if self.format.content_opening == self.written else self.format.content_opening
        return f"{self.lark.literal(opening)} {self.lark.part(self.body)}"

    def _only_calls(self) -> str:
        format, written = self.format, self.written
        no_content = ""
        if format.content_closing:
            empty = self.lark.literal((format.content_opening + format.content_closing).removeprefix(written))
            no_content = empty if written else f"({empty})?"
        head = (format.begin + format.opening + "[" * format.array).removeprefix(written)
        return f"{no_content} {self.lark.spaced(head)} call {self._more_calls()}"

    def _more_calls(self) -> str:
        """Further calls and the end marker, after the first call."""
        lark, format, array = self.lark, self.format, self.format.array
        between = [lark.literal(","), lark.space(" ")] if array else []
        between += map(lark.spaced, [*format.separator.splitlines(keepends=True), format.opening])
        one = format.single or not self.prompt.parallel_calls or self.prompt.function
        more = "" if one else f"({' '.join(between)} call)*"
        return f"{more} {lark.space('') if array else ''} {lark.spaced(']' * array + format.end)}"

    # ── replies that need not call ───────────────────────────────────────────────────────────────────────────────────

    def _free_then_calls(self) -> str:
        """Any text up to a marker that starts a call, and then calls."""
        lark, starts = self.lark, self._starts()
        markers = [marker for marker, _ in starts]
        # The prompt may end with the first part of a marker.
        at_once = [
            (marker.removeprefix(self.written), rest)
            for marker, rest in starts
            if self.written and marker.startswith(self.written)
        ]
        not_first = [escape(marker) for marker, _ in at_once]
        free = lark.without(markers, not_first=not_first, allowed=self.format.skipped_markers)
        calls = " | ".join(f"{lark.until(marker, not_first=not_first)} {rest}" for marker, rest in starts)
        first = "".join(f"{lark.literal(marker)} {rest} | " for marker, rest in at_once)
        return f"({first}{free} ({calls})?)"

    def _starts(self) -> list[tuple[str, str]]:
        """The markers that certainly start a call, each with the expression after it."""
        format = self.format
        start, *others = format.start_markers
        reasoning = [format.reasoning.opening] if format.reasoning is not None else []
        if not any(marker.startswith(start) for marker in (*format.skipped_markers, *reasoning)):
            head = (format.begin + format.opening).removeprefix(start) + "[" * format.array
            rest = f"{self.lark.spaced(head)} call {self._more_calls()}"
            return [(start, rest), *((other, f"call {self._more_calls()}") for other in others)]
        # Content starts with the same marker: only the name tells a call.
        starts: list[tuple[str, str]] = []
        for function in self.functions:
            prefix = format.call_prefix(function.name)
            rest = self.lark.rule(f"rest{function.index}", format.grammar(function, prefix))
            starts.append((start + prefix, f"{rest} {self._more_calls()}"))
        return starts

    def _free_or_bare_calls(self) -> str:
        """Calls without a marker, or any text that does not start like one."""
        pattern = self.format.bare_pattern([function.name for function in self.functions])
        others = self.format.other_openings
        either = f"(call {self._more_calls()} | {self.lark.without(others, not_first=[pattern])})"
        openings = self.lark.one_of(others)
        return f"{either} ({openings} {either})?" if openings else either
