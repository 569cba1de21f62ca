"""`paddock lab`: experiments with this server and with others, each of which ends in a page with pictures."""

from __future__ import annotations

import importlib.util
import sys

import click

from paddock.cli.lazy import LazyGroup

_EXPERIMENTS = {
    "prefix-cache": "What is a known prefix worth?",
    "determinism": "Do two replicas give the same bytes, cold or warm, alone or among others?",
    "routing": "Which of many replicas should get a request?",
}
_NEEDED = ("matplotlib", "rich")


def need_the_extra() -> None:
    """Ends here, with a word on what to install, where the lab's packages are missing."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        click.echo(f"paddock: the lab needs {' and '.join(missing)}: pip install 'paddock-llm[lab]'", err=True)
        sys.exit(1)


class _Experiments(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _EXPERIMENTS:
            need_the_extra()
        return super().get_command(ctx, cmd_name)


@click.group(
    "lab",
    cls=_Experiments,
    modules="paddock.lab.{}.command",
    commands=_EXPERIMENTS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
def command() -> None:
    """Experiments with this server and with others, all in one run, each of which ends in a page with pictures."""
