"""A Lark grammar in the making, for a vocabulary in which some markers are control tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paddock.types import Constraint

_SPECIAL = frozenset(r".^$*+?()[]{}|\/")


class Spelling(Protocol):
    """How Lark writes what a vocabulary has: some markers are control tokens, which no text can spell."""

    def literal(self, marker: str) -> str: ...

    def controls_but(self, marker: str) -> str:
        """Any control token that is not part of the marker and ends no answer; nothing where there is none."""
        ...


@dataclass(slots=True)
class Lark:
    spelling: Spelling
    loose: bool = False
    """Whitespace may be other than it is given, as models have habits; without need it only costs tokens."""
    parts: dict[Constraint, str] = field(default_factory=dict)
    """By the names under which the grammar refers to them."""
    rules: dict[str, str] = field(default_factory=dict)
    known: dict[tuple[str, str], str] = field(default_factory=dict)
    """Names of rules by their kind and text."""

    @property
    def source(self) -> str:
        return "\n".join(f"{name}: {rule}" for name, rule in self.rules.items())

    def rule(self, name: str, text: str) -> str:
        self.rules[name] = text
        return name.partition("[")[0]

    def part(self, constraint: Constraint) -> str:
        return self.parts.setdefault(constraint, f"@part{len(self.parts)}")

    def written(self, marker: str) -> str:
        return self.spelling.literal(marker) if marker else ""

    def spaced(self, marker: str) -> str:
        """The same, where it is loose with any whitespace or none for a line's end at its beginning or end."""
        if not self.loose:
            return self.written(marker)
        before, after = (self.gap if edge == "\n" else "" for edge in (marker[:1], marker[-1:]))
        return " ".join(filter(None, (before, self.written(marker.strip("\n")), after)))

    @property
    def gap(self) -> str:
        """Whitespace or none; not without end, because some models would go on with it."""
        return self.rule("GAP", r"/[ \n]{1,16}/") + "?"

    def space(self, exact: str) -> str:
        return self.gap if self.loose else self.written(exact)

    def one_of(self, texts: Sequence[str]) -> str:
        """Any of these; an empty one among them makes it optional."""
        spelled = [text for text in map(self.written, texts) if text]
        return f"({' | '.join(spelled)}){'?' if len(spelled) < len(texts) else ''}" if spelled else ""

    def until(self, marker: str, *, first: Sequence[str] = ()) -> str:
        """Any text up to and with the marker, without the patterns in `first` at its beginning."""
        if self._is_token(marker):
            return f"{self._free(first)}? {self.written(marker)}"
        text = f"/(?s:.*){escaped(marker)}/"
        if first:
            text = self.shared("UNTIL", f"{text} & {self._not_first(first)}")
        return self.shared("until[lazy]", text)

    def without(self, markers: Sequence[str], *, first: Sequence[str] = (), but: Sequence[str] = ()) -> str:
        """Anything at all without these markers, and without the patterns in `first` at its beginning. Control tokens
        of the markers may stand where they are part of the markers in `but`.
        """
        tokens = [marker for marker in markers if self._is_token(marker)]
        texts = [escaped(marker) for marker in markers if marker not in tokens]
        text = self._free(first, texts)
        parts = [marker for marker in but if tokens and self._is_token(marker)]
        controls = self.spelling.controls_but("".join([*tokens, *parts]))
        others = " | ".join(filter(None, (controls, *map(self.written, parts))))
        if not others:
            return f"{text}?"
        # What comes first is another matter than what comes after a control token.
        return f"{text}? (({others}) {self._any}?)*" if first else f"({text} | {others})*"

    def _free(self, first: Sequence[str], without: Sequence[str] = ()) -> str:
        """Any text that is not one of these at its beginning, nor has one of those in it; all of them patterns."""
        if not first and not without:
            return self._any
        limits = [self._not_first(first)] if first else []
        limits += [f"~/(?s:.*)({'|'.join(without)})(?s:.*)/"] if without else []
        return self.shared("FREE", " & ".join(["/(?s:.+)/", *limits]))

    def _not_first(self, patterns: Sequence[str]) -> str:
        return self.shared("OTHER", f"~/({'|'.join(patterns)})(?s:.*)/")

    @property
    def _any(self) -> str:
        return self.shared("ANY", "/(?s:.+)/")

    def shared(self, kind: str, text: str) -> str:
        """The rule with this text, which may be there already."""
        if (kind, text) not in self.known:
            name, bracket, options = kind.partition("[")
            self.known[kind, text] = self.rule(f"{name}_{len(self.rules)}{bracket}{options}", text)
        return self.known[kind, text]

    def _is_token(self, marker: str) -> bool:
        return not self.spelling.literal(marker).startswith('"')


def escaped(text: str) -> str:
    """A text as a regular expression between slashes."""
    return "".join("\\" + letter if letter in _SPECIAL else letter.replace("\n", r"\n") for letter in text)
