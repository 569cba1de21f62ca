"""The command itself: every finding in a line, and what helps below it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paddock.cli.doctor.finding import Finding, Level

_COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "red"}
_LEVEL, _ABOUT = 9, 14


@click.command("doctor", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file (JSON).")
@click.option("--service", default="paddock", metavar="NAME", help="The systemd service to look at. [paddock]")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(config: Path | None, service: str, as_json: bool) -> None:
    """Look for what could keep `paddock serve` with the same settings from working, or working well.

    Each finding comes with its cure. The exit status is 1 if there is a problem; warnings leave it at 0.
    """
    from paddock.cli.doctor.examination import examine

    file = config or (Path(named).expanduser() if (named := os.environ.get("PADDOCK_CONFIG")) else None)
    findings = []
    for finding in examine(file, service):
        findings.append(finding)
        if not as_json:
            click.echo(_lines(finding))
    problems, warnings = (sum(finding.level == level for finding in findings) for level in ("problem", "warning"))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        click.echo(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    sys.exit(1 if problems else 0)


def _lines(finding: Finding) -> str:
    level = click.style(f"{finding.level:<{_LEVEL}}", fg=_COLOURS[finding.level])
    line = f"{level}{finding.about:<{_ABOUT}}{finding.text}"
    if not finding.cure or finding.level == "ok":
        return line
    return f"{line}\n{'':<{_LEVEL + _ABOUT}}→ {finding.cure}"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
