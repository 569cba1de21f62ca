"""docs/reference/flags.md: every command of `paddock`, its arguments and its flags."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from paddock.cli import main

_HEADER = """\
# Commands and flags

Every command and its flags, as `--help` prints them. A value in brackets is the default. (This page is generated from
the code: `make docs`.)

The flags of `paddock serve` are other names for settings: [configuration.md](configuration.md) lists both.
"""


def page() -> str:
    return _HEADER + "".join(_section(path, command) for path, command in commands(main, ("paddock",)))


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command except groups, with its words on the command line."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from commands(below, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    rows = ""
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None:
            rows += f"| `{_cell(record[0])}` | {_cell(record[1])} |\n"
    table = f"\n| flag | |\n|---|---|\n{rows}" if rows else ""
    about = inspect.cleandoc(command.help or "").replace("\b\n", "")
    return f"\n## `{' '.join(path)}`\n\n    {usage}\n\n{about}\n{table}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
