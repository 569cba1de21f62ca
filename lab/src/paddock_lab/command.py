"""`paddock lab`: experiments with this server and with others, each with a report as a web page."""

from __future__ import annotations

import click

from paddock.cli.common import LazyGroup

_EXPERIMENTS = {
    "prefix-cache": "How much time does a cached prefix save?",
    "determinism": "Do two replicas give the same bytes, cold or warm, alone or under load?",
    "routing": "Compare policies that choose a replica for each request.",
}


@click.group(
    "lab",
    cls=LazyGroup,
    modules="paddock_lab.{}.command",
    commands=_EXPERIMENTS,
)
def command() -> None:
    """Run experiments with this and other servers, all in one run. Each writes a report as a web page."""
