"""`paddock config`: the configuration that `paddock serve` would use, and where each value comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli import serve

if TYPE_CHECKING:
    from paddock.config import Loaded

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_LONGEST_VALUE = 60

# The flags of `paddock serve` that are settings, and the two that say where settings come from.
_FLAGS = [
    param
    for param in serve.command.params
    if param.name in serve.SETTING_OF_FLAG or param.name in {"config", "verbose"}
]


@click.group("config", context_settings=_CONTEXT)
def command() -> None:
    """Show the configuration, or check it. Both take the flags of `paddock serve`."""


def flags_of_setting() -> dict[str, list[str]]:
    """The flags of `paddock serve` for each setting, as they are written."""
    found: dict[str, list[str]] = {}
    for param in _FLAGS:
        if param.name in serve.SETTING_OF_FLAG:
            found[serve.SETTING_OF_FLAG[param.name]] = [*param.opts, *param.secondary_opts]
    return found | {"server.log_level": ["-v", "--verbose"]}


def show(config: Path | None, verbose: bool, as_json: bool, **flags: Any) -> None:
    """Print every setting with its value and its source: default, file, environment or flag. Keys are masked."""
    from paddock.config.effective import effective

    values = effective(_load(config, verbose, flags))
    named = {
        key: next((flag for flag in flags if flag.startswith("--")), "") for key, flags in flags_of_setting().items()
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


def check(config: Path | None, verbose: bool, **flags: Any) -> None:
    """Read the configuration as `paddock serve` would, and say what is wrong with it. The exit status is 1 then."""
    _load(config, verbose, flags)
    click.echo("The configuration is valid.")


def _load(config: Path | None, verbose: bool, flags: dict[str, Any]) -> Loaded:
    from paddock.config import load_with_sources
    from paddock.errors import StartupError

    try:
        return load_with_sources(file=config, flags=serve.to_settings(serve.given_flags(verbose, flags)))
    except StartupError as error:
        click.echo(f"paddock: {error.message}", err=True)
        sys.exit(1)


_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object: key → value, source and from.")
for _name, _callback, _params in (("show", show, [_JSON, *_FLAGS]), ("check", check, _FLAGS)):
    command.add_command(
        click.Command(_name, callback=_callback, params=_params, help=_callback.__doc__, context_settings=_CONTEXT)
    )
