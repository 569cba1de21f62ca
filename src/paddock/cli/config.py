"""`paddock config`: the configuration that `paddock serve` would use, and where each value comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.options import flags_of_settings, given_settings, setting_options

if TYPE_CHECKING:
    from paddock.config import Loaded

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_LONGEST_VALUE = 60

_CONFIG = click.Option(["--config"], type=click.Path(path_type=Path), metavar="FILE", help="The configuration file.")


@click.group("config", context_settings=_CONTEXT)
def command() -> None:
    """Show or check the configuration. Both commands take the flags of `paddock serve`."""


def show(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Print every setting with its value and its source: default, file, environment or flag. Keys are masked."""
    from paddock.config.effective import effective

    values = effective(_load(config, flags))
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


def check(config: Path | None, **flags: Any) -> None:
    """Check the configuration that `paddock serve` would use. The exit status is 1 if it is invalid."""
    _load(config, flags)
    click.echo("The configuration is valid.")


def _load(config: Path | None, flags: dict[str, Any]) -> Loaded:
    from paddock.config import load_with_sources
    from paddock.errors import StartupError

    try:
        return load_with_sources(file=config, flags=given_settings(flags))
    except StartupError as error:
        click.echo(f"paddock: {error.message}", err=True)
        sys.exit(1)


_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object: key → value, source and from.")
for _name, _callback, _params in (("show", show, [_JSON, _CONFIG]), ("check", check, [_CONFIG])):
    command.add_command(
        click.Command(
            _name,
            callback=_callback,
            params=[*_params, *setting_options()],
            help=_callback.__doc__,
            context_settings=_CONTEXT,
        )
    )
