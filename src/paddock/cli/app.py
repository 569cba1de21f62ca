from __future__ import annotations

import importlib

import click

from paddock import __version__

_COMMANDS = {
    "serve": "Serve models over HTTP (OpenAI- and llama.cpp-compatible).",
    "pull": "Download a model from the Hugging Face hub.",
    "keys": "Make API keys.",
    "models": "List the models that would be served, and the memory they would take.",
    "doctor": "Find what is wrong here, and what helps.",
    "service": "Run it as a systemd service: install, uninstall, status.",
}


class _LazyGroup(click.Group):
    """Knows its commands' names and one-line help; imports a command's module only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"paddock.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="paddock")
def main() -> None:
    """One server for every GGUF model on a machine."""
