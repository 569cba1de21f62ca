"""What all commands share: they are imported when they run, and their errors are one line on stderr."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from keyword import iskeyword
from pathlib import Path
from typing import Any

import click

from paddock.errors import PaddockError

_ENTRY_POINTS = "paddock.commands"
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")

config_option = click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="The configuration file (JSON)."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class LazyGroup(click.Group):
    """Knows the names and one-line help of its commands, so that `--help` is fast. A command is imported when it runs.

    `plugins` maps commands of other distributions to these distributions. They register an entry point in the group
    `paddock.commands`.
    """

    def __init__(
        self, *, modules: str, commands: Mapping[str, str], plugins: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        """`modules` is the module path of a command, with {} for its name in Python."""
        super().__init__(**options)
        self._modules, self._help, self._plugins = modules, commands, plugins or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._help:
            return None
        if cmd_name in self._plugins:
            return _plugin(cmd_name, self._plugins[cmd_name])
        module = importlib.import_module(self._modules.format(_module(cmd_name)))
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PaddockError as error:
            click.echo(f"paddock: {error.message}", err=True)
            ctx.exit(1)


def _module(name: str) -> str:
    """The name of a command in Python."""
    name = name.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _plugin(name: str, distribution: str) -> click.Command:
    for entry in entry_points(group=_ENTRY_POINTS, name=name):
        command: click.Command = entry.load()
        return command
    raise click.ClickException(f"`paddock {name}` needs the distribution {distribution}: pip install {distribution}")


def config_file(given: Path | None) -> Path | None:
    """The file of `--config`, or of the environment."""
    return given or (Path(named).expanduser() if (named := os.environ.get("PADDOCK_CONFIG")) else None)


def short_number(value: int, step: int, units: tuple[str, ...]) -> str:
    """A short number with its unit: `980 M`, `1.2 GiB`."""
    number, unit = float(value), 0
    while number >= step and unit < len(units) - 1:
        number, unit = number / step, unit + 1
    digits = 0 if unit == 0 or number >= 100 else 1
    return f"{number:.{digits}f} {units[unit]}".strip()


def size(value: int) -> str:
    """A number of bytes: `1.2 GiB`."""
    return short_number(value, 1024, _BYTES)
