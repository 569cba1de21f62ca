"""`paddock config`: the configuration that `paddock serve` would use, and where each value comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from paddock.cli.common import config_option
from paddock.cli.options import flags_of_settings, given_settings, setting_options

_LONGEST_VALUE = 60


@click.group("config")
def command() -> None:
    """Show or check the configuration. Both commands take the flags of `paddock serve`."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: key → value, source and from.")
@config_option
def show(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Print every setting with its value and its source: default, file, environment or flag. Keys are masked."""
    from paddock.config import load_with_sources
    from paddock.config.effective import effective

    values = effective(load_with_sources(file=config, flags=given_settings(flags)))
    named = {
        key: next((flag for flag in flags if flag.startswith("--")), "") for key, flags in flags_of_settings().items()
    }
    if as_json:
        click.echo(json.dumps({value.key: {"value": value.value, **value.source(named)} for value in values}, indent=2))
        return
    width = max(len(value.key) for value in values)
    for value in values:
        text = json.dumps(value.value, ensure_ascii=False)
        text = text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
        source = value.source(named)
        origin = " ".join(filter(None, (source["source"], source.get("from"))))
        click.echo(f"{value.key:<{width}}  {text:<28}  {origin}")


@command.command()
@config_option
def check(config: Path | None, **flags: Any) -> None:
    """Check the configuration that `paddock serve` would use. The exit status is 1 if it is invalid."""
    from paddock.config import load_settings

    load_settings(file=config, flags=given_settings(flags))
    click.echo("The configuration is valid.")


for _command in (show, check):
    _command.params += setting_options()
