"""What `paddock verify` found, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click
import msgspec

from paddock.receipts import CheckedLine, Comparison, IdentityDiffers

DIFFERS, MALFORMED, NOT_COMPUTED = 1, 2, 3
"""Exit statuses."""
_LISTED = 20


@dataclass(slots=True)
class Finding:
    """What is wrong with a line."""

    line: int
    custom_id: str | None
    problems: list[str] = field(default_factory=list)
    """What shows that it was changed."""
    error: str = ""
    """Why it could not be computed again."""
    comparison: Comparison | None = None
    """Set if its answer was another one."""


@dataclass(slots=True)
class Report:
    """Counts, and the lines with which something is wrong: a file may have millions of lines."""

    lines: int = 0
    receipts: int = 0
    signed: int = 0
    streams: int = 0
    without: int = 0
    """Lines of a batch that never had a receipt."""
    computed: int = 0
    findings: dict[int, Finding] = field(default_factory=dict)
    """By the number of the line."""
    identity: dict[str, IdentityDiffers] = field(default_factory=dict)
    """What differs between the servers, by its text."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the engine that all receipts have."""
    last: str | None = None
    problem: str = ""
    """Of the file as a whole."""

    def finding(self, line: int, custom_id: str | None) -> Finding:
        return self.findings.setdefault(line, Finding(line, custom_id))

    def add(self, line: CheckedLine) -> None:
        self.lines += 1
        if line.problems:
            self.finding(line.number, line.custom_id).problems = line.problems
        self.signed += line.is_signed
        if line.receipt is None:
            self.without += not line.problems
            return
        self.receipts += 1
        self.streams += not line.covers_reply
        options = line.receipt.identity.options
        if self.receipts == 1:
            self.options = dict(options)
        elif self.options != options:
            self.options = {name: value for name, value in self.options.items() if options.get(name) == value}

    def compared(self, line: int, custom_id: str | None, comparison: Comparison) -> None:
        self.computed += 1
        self.identity.update((str(each), each) for each in comparison.identity)
        if not comparison.is_identical:
            self.finding(line, custom_id).comparison = comparison

    @property
    def altered(self) -> list[Finding]:
        return [one for one in self.findings.values() if one.problems]

    @property
    def different(self) -> list[Finding]:
        return [one for one in self.findings.values() if one.comparison is not None]

    @property
    def failed(self) -> list[Finding]:
        return [one for one in self.findings.values() if one.error]

    @property
    def exit_code(self) -> int:
        if self.altered or self.different or self.problem:
            return DIFFERS
        return NOT_COMPUTED if self.failed else 0


def print_report(report: Report) -> None:
    altered, different, failed = report.altered, report.different, report.failed
    for one in altered[:_LISTED]:
        for problem in one.problems:
            click.echo(f"{_name(one)}: {problem}")
    _print_rest(altered)
    if report.problem:
        click.echo(report.problem)
    for one in different[:_LISTED]:
        for difference in one.comparison.answers if one.comparison is not None else ():
            click.echo(f"{_name(one)}: {difference}")
    _print_rest(different)
    for one in failed[:_LISTED]:
        click.echo(f"{_name(one)}: not computed: {one.error}")
    _print_rest(failed)
    if report.identity:
        click.echo("What differs between the server of the receipts (there) and this one (here):")
        for text in report.identity:
            click.echo(f"  {text}")
    click.echo(
        f"{report.lines} lines: {report.lines - len(altered) - report.without} as written, {len(altered)} altered; "
        f"{report.signed} signed"
    )
    if report.without:
        click.echo(f"{report.without} lines never had a receipt: nothing shows whether they were changed or added")
    if report.streams:
        click.echo(
            f"{report.streams} receipts are of streams: they cover the generated text, not the rest of the reply"
        )
    if report.computed or failed:
        click.echo(
            f"{report.computed} computed again: {report.computed - len(different)} identical, "
            f"{len(different)} different" + (f"; {len(failed)} could not be computed" if failed else "")
        )
    else:
        click.echo("none computed again: hashes show changes, but not that the model gave these answers")
    click.echo(f"last receipt: {report.last}")


def _print_rest(lines: list[Finding]) -> None:
    if len(lines) > _LISTED:
        click.echo(f"… and {len(lines) - _LISTED} more lines (--json lists all)")


def _name(one: Finding) -> str:
    return f"line {one.line}" + (f" ({one.custom_id[:80]})" if one.custom_id is not None else "")


def as_json_object(report: Report) -> dict[str, Any]:
    different = len(report.different)
    return {
        "lines": report.lines,
        "altered": len(report.altered),
        "signed": report.signed,
        "without_receipt": report.without,
        "computed": report.computed,
        "identical": report.computed - different,
        "different": different,
        "failed": len(report.failed),
        "last": report.last,
        "problem": report.problem or None,
        "exit_code": report.exit_code,
        "identity": [_plain(each) for each in report.identity.values()],
        "findings": [
            {
                "line": one.line,
                "custom_id": one.custom_id,
                "problems": one.problems,
                "error": one.error or None,
                "answers": [_plain(each) for each in one.comparison.answers] if one.comparison is not None else [],
            }
            for _, one in sorted(report.findings.items())
        ],
    }


def _plain(difference: Any) -> Any:
    return msgspec.to_builtins(difference)
