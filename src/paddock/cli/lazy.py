"""Commands that are imported when they run, so that `--help` is fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import click

_GROUP = "paddock.commands"


class LazyGroup(click.Group):
    """Knows the names and one-line help of its commands. A command is imported when it runs.

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
        module = importlib.import_module(self._modules.format(cmd_name.replace("-", "_")))
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help.items()))


def _plugin(name: str, distribution: str) -> click.Command:
    for entry in entry_points(group=_GROUP, name=name):
        command: click.Command = entry.load()
        return command
    raise click.ClickException(f"`paddock {name}` needs the distribution {distribution}: pip install {distribution}")
