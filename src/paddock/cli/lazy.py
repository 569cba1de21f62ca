from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """Knows its commands' names and one-line help; imports a command's module only to run it."""

    def __init__(self, *, modules: str, commands: Mapping[str, str], **options: Any) -> None:
        """`modules` is where a command's module is, with {} for its name in Python."""
        super().__init__(**options)
        self._modules, self._help = modules, commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._help:
            return None
        module = importlib.import_module(self._modules.format(cmd_name.replace("-", "_")))
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._help.items()))
