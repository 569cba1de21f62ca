"""Builds a Lark grammar for a vocabulary in which some markers are control tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paddock.types import Constraint

ID_PATTERN = "[A-Za-z0-9]{1,40}"
PLACEHOLDER = re.compile(r"(\{number\}|\{kind\}|\{id\})")
_SPECIAL = frozenset(r".^$*+?()[]{}|\/")


class Spelling(Protocol):
    """Writes markers in Lark. Some of them are control tokens, which no text can spell."""

    def literal(self, marker: str) -> str: ...

    def controls_except(self, marker: str) -> str:
        """Any control token that is not part of the marker and does not end the answer. Empty if there is none."""
        ...


@dataclass(slots=True)
class LarkBuilder:
    spelling: Spelling
    loose: bool = False
    """Accept other whitespace than the usual. A model that must call needs no such choice: it only costs tokens."""
    parts: dict[Constraint, str] = field(default_factory=dict)
    """Nested constraints, and the names by which the grammar refers to them."""
    rules: dict[str, str] = field(default_factory=dict)
    _shared: dict[tuple[str, str], str] = field(default_factory=dict)
    """Names of shared rules, by kind and text."""

    @property
    def source(self) -> str:
        return "\n".join(f"{name}: {rule}" for name, rule in self.rules.items())

    def rule(self, name: str, text: str) -> str:
        self.rules[name] = text
        return name.partition("[")[0]

    def shared(self, kind: str, text: str) -> str:
        """Add a rule, or return the rule that has the same kind and text."""
        if (kind, text) not in self._shared:
            name, bracket, options = kind.partition("[")
            self._shared[kind, text] = self.rule(f"{name}_{len(self.rules)}{bracket}{options}", text)
        return self._shared[kind, text]

    def part(self, constraint: Constraint) -> str:
        return self.parts.setdefault(constraint, f"@part{len(self.parts)}")

    # ── markers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def literal(self, marker: str) -> str:
        return self.spelling.literal(marker) if marker else ""

    def spaced(self, marker: str) -> str:
        """The marker. In a loose grammar, any whitespace may replace a line end before or after it."""
        if not self.loose:
            return self.literal(marker)
        before, after = (self.gap if edge == "\n" else "" for edge in (marker[:1], marker[-1:]))
        return " ".join(filter(None, (before, self.literal(marker.strip("\n")), after)))

    @property
    def gap(self) -> str:
        """Optional whitespace. It is limited, because some models would not stop writing it."""
        return self.rule("GAP", r"/[ \n]{1,16}/") + "?"

    def space(self, exact: str) -> str:
        return self.gap if self.loose else self.literal(exact)

    def filled(self, marker: str, kinds: Sequence[str] = (), *, spaced: bool = False) -> str:
        """A marker with the placeholders `{number}`, `{id}` and `{kind}`."""
        parts = {"{number}": "/[0-9]{1,9}/", "{id}": f"/{ID_PATTERN}/"}
        if kinds:
            either = " | ".join(self.filled(kind) for kind in kinds if kind)
            parts["{kind}"] = f"({either}){'?' * ('' in kinds)}"
        spell = self.spaced if spaced else self.literal
        return " ".join(filter(None, (parts.get(part) or spell(part) for part in PLACEHOLDER.split(marker))))

    def one_of(self, texts: Sequence[str]) -> str:
        """One of these texts. An empty text makes the choice optional."""
        spelled = [text for text in map(self.literal, texts) if text]
        return f"({' | '.join(spelled)}){'?' if len(spelled) < len(texts) else ''}" if spelled else ""

    # ── free text ────────────────────────────────────────────────────────────────────────────────────────────────────

    def until(self, marker: str, *, not_first: Sequence[str] = ()) -> str:
        """Any text up to and including the marker. The text does not start with one of the patterns in `not_first`."""
        if self._is_token(marker):
            return f"{self._free(not_first)}? {self.literal(marker)}"
        text = f"/(?s:.*){escape(marker)}/"
        if not_first:
            text = self.shared("UNTIL", f"{text} & {self._other_start(not_first)}")
        return self.shared("until[lazy]", text)

    def without(self, markers: Sequence[str], *, not_first: Sequence[str] = (), allowed: Sequence[str] = ()) -> str:
        """Any text without these markers, that does not start with one of the patterns in `not_first`. Control tokens
        of the markers may occur inside the `allowed` markers.
        """
        tokens = [marker for marker in markers if self._is_token(marker)]
        texts = [escape(marker) for marker in markers if marker not in tokens]
        text = self._free(not_first, texts)
        inside = [marker for marker in allowed if tokens and self._is_token(marker)]
        controls = self.spelling.controls_except("".join([*tokens, *inside]))
        others = " | ".join(filter(None, (controls, *map(self.literal, inside))))
        if not others:
            return f"{text}?"
        # The limit on the start does not apply to text after a control token.
        return f"{text}? (({others}) {self._any}?)*" if not_first else f"({text} | {others})*"

    def _free(self, not_first: Sequence[str], without: Sequence[str] = ()) -> str:
        """Any text that neither starts with one pattern nor contains the other."""
        if not not_first and not without:
            return self._any
        limits = [self._other_start(not_first)] if not_first else []
        limits += [f"~/(?s:.*)({'|'.join(without)})(?s:.*)/"] if without else []
        return self.shared("FREE", " & ".join(["/(?s:.+)/", *limits]))

    def _other_start(self, patterns: Sequence[str]) -> str:
        return self.shared("OTHER", f"~/({'|'.join(patterns)})(?s:.*)/")

    @property
    def _any(self) -> str:
        return self.shared("ANY", "/(?s:.+)/")

    def _is_token(self, marker: str) -> bool:
        return not self.spelling.literal(marker).startswith('"')


def escape(text: str) -> str:
    """The text as a regular expression between slashes."""
    return "".join("\\" + letter if letter in _SPECIAL else letter.replace("\n", r"\n") for letter in text)
