"""Normalizers: rules by name that drop or move changing text at the front of a prompt, so that more of it is cached.

A rule is a pure function on the texts of a system message. It takes linear time, adds at most a blank line, changes
nothing in a text without its patterns, and changes nothing when it is applied again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Rule = Callable[[list[str]], list[str]]


@dataclass(frozen=True, slots=True)
class Normalizer:
    rule: Rule
    description: str
    """What it does, for the reference."""


# ── claude-code ──────────────────────────────────────────────────────────────────────────────────────────────────────

_BILLING = "x-anthropic-billing-header:"
_MOST_FIELDS, _LONGEST_FIELD = 16, 200
_SIGNS = (_BILLING, "You are Claude Code", "Claude Agent SDK")
"""Texts of which a system message of Claude Code has at least one."""
_CHANGING = (
    "Working directory: ",
    "Primary working directory: ",
    "Additional working directories: ",
    "Is directory a git repo: ",
    "Is a git repository: ",
    "Today's date: ",
    "Today's date is ",
)
"""The beginnings of lines that differ between projects and days."""
_LONGEST_LINE = 1024


def _claude_code(texts: list[str]) -> list[str]:
    if not any(sign in text for text in texts for sign in _SIGNS):
        return texts
    kept: list[str] = []
    moved: list[str] = []
    for text in texts:
        lines: list[str] = []
        given = text.split("\n")
        for line in given:
            left = _without_billing(line)
            if left is not None:
                (moved if _is_changing(left) else lines).append(left)
        rest = "\n".join(lines)
        if rest.strip("\n") or len(lines) == len(given):  # a text that had nothing else is gone
            kept.append(rest)
    if not moved:
        return kept
    while kept and not kept[-1].strip("\n"):
        kept.pop()
    last = [kept.pop().rstrip("\n") + "\n"] if kept else []
    return [*kept, "\n".join([*last, *moved])]


def _without_billing(line: str) -> str | None:
    """The line without the billing header at its start, which has fields `name=value;`. None if nothing is left."""
    at = 0
    while (after := _after_header(line, at)) > at:
        at = after
    return line if not at else line[at:].rstrip() or None


def _after_header(line: str, at: int) -> int:
    """Where the text after a billing header at `at` begins; `at` if there is no header."""
    if not line.startswith(_BILLING, at):
        return at
    fields, place = 0, at + len(_BILLING)
    while fields < _MOST_FIELDS and (end := line.find(";", place, place + _LONGEST_FIELD)) >= 0:
        name, equals, _ = line[place:end].partition("=")
        if not equals or not name.strip().replace("_", "").isalnum():
            break
        fields, place = fields + 1, end + 1
    if not fields:
        return at
    while place < len(line) and line[place].isspace():
        place += 1
    return place


def _is_changing(line: str) -> bool:
    return len(line) <= _LONGEST_LINE and line.lstrip(" -").startswith(_CHANGING)


NORMALIZERS: Mapping[str, Normalizer] = {
    "claude-code": Normalizer(
        _claude_code,
        "drops the line `x-anthropic-billing-header: …` of Claude Code's system text, which differs in every request, "
        "and moves the lines with the working directory, the git repository and the date to the end of the system text",
    ),
}


def checked_normalizer(name: str) -> str:
    """Raises `ValueError` for a name that is not known."""
    if name not in NORMALIZERS:
        raise ValueError(f"{name!r} is not a normalizer; there are: {', '.join(NORMALIZERS)}")
    return name
