"""`paddock lab`: experiments with this server and with others, each of which ends in a page with pictures."""

from __future__ import annotations

import click

from paddock.cli.lazy import LazyGroup

_EXPERIMENTS = {
    "prefix-cache": "What is a known prefix worth?",
    "determinism": "Do two replicas give the same bytes, cold or warm, alone or among others?",
    "routing": "Which of many replicas should get a request?",
}


@click.group(
    "lab",
    cls=LazyGroup,
    modules="paddock_lab.{}.command",
    commands=_EXPERIMENTS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
def command() -> None:
    """Experiments with this server and with others, all in one run, each of which ends in a page with pictures."""
