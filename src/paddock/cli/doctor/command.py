"""The command: runs every check and prints the findings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from paddock.cli.common import config_file, config_option, json_option
from paddock.cli.doctor.finding import Finding, Level

_COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "red"}
_LEVEL_WIDTH, _ABOUT_WIDTH = 9, 14


@click.command("doctor")
@config_option
@click.option("--service", default="paddock", metavar="NAME", help="The systemd service to check. [paddock]")
@click.option("--measure", is_flag=True, help="Measure the speed of both libraries again, if there is a build.")
@json_option
def command(config: Path | None, service: str, measure: bool, as_json: bool) -> None:
    """Check whether `paddock serve` would work, and work fast, with the same settings.

    Each problem is printed with its solution. The exit status is 1 if there is a problem; warnings leave it at 0.
    """
    findings = []
    for finding in _examine(config_file(config), service, measure=measure):
        findings.append(finding)
        if not as_json:
            click.echo(_lines(finding))
    problems, warnings = (sum(finding.level == level for finding in findings) for level in ("problem", "warning"))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        click.echo(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    sys.exit(1 if problems else 0)


def _examine(file: Path | None, service: str, *, measure: bool) -> Iterator[Finding]:
    from paddock.cli.doctor.library import examine_library, examine_trial
    from paddock.cli.doctor.machine import examine_build, examine_installation, examine_machine, processor_flags
    from paddock.cli.doctor.models import check_speed, examine_models, room_for_models
    from paddock.cli.doctor.prices import examine_prices
    from paddock.cli.doctor.server import examine_server, examine_service
    from paddock.config import load_settings
    from paddock.errors import SettingsError
    from paddock.fleet.process.native import ask_build

    yield from examine_installation()
    build = ask_build()
    yield from examine_build(build, processor_flags())
    if not build.failure:
        yield from examine_trial()
    try:
        settings = load_settings(file=file)
    except SettingsError as error:
        yield Finding("problem", "config", error.message, "correct it; README.md has an example of a configuration")
    else:
        yield Finding("ok", "config", f"{file or 'the configuration'} is valid")
        manager = settings.model_manager
        yield from examine_library(manager.n_threads, measure=measure)
        yield from examine_machine(settings, build)
        yield from examine_models(manager, room_for_models(manager, build))
        yield from check_speed(manager, os.cpu_count() or 1)
        yield from examine_server(settings.server, file)
        yield from examine_prices(settings.server)
    yield from examine_service(service)


def _lines(finding: Finding) -> str:
    level = click.style(f"{finding.level:<{_LEVEL_WIDTH}}", fg=_COLOURS[finding.level])
    line = f"{level}{finding.about:<{_ABOUT_WIDTH}}{finding.text}"
    if not finding.cure or finding.level == "ok":
        return line
    return f"{line}\n{'':<{_LEVEL_WIDTH + _ABOUT_WIDTH}}→ {finding.cure}"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
