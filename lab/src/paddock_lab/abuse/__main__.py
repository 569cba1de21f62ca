"""The command line: `python -m paddock_lab.abuse`."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace

import click

from paddock_lab.abuse.attack import TIMEOUTS
from paddock_lab.abuse.experiment import Experiment
from paddock_lab.abuse.storm import FAMILIES
from paddock_lab.stress import paddock

_HONEST_KEY, _ATTACKER_KEY, _ADMIN_KEY = "honest-client-key", "attacker-key", "operator-key"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", default="fake:delay=0.01", show_default=True, metavar="FILE", help="A GGUF file, or fake:.")
@click.option("--seconds", default=60.0, show_default=True, help="Half of it is the phase without attackers.")
@click.option("--connections", default=1000, show_default=True, help="max_connections, and how many are held open.")
@click.option("--clients", default=2, show_default=True, help="Honest clients.")
@click.option("--family", "families", multiple=True, type=click.Choice(sorted(FAMILIES)), help="Default: all of them.")
@click.option("--apart", is_flag=True, help="Run a separate phase for each family.")
@click.option(
    "--ratio", default=3.0, show_default=True, help="Limit of first token under attack / idle; 0: only reported."
)
def main(
    model: str, seconds: float, connections: int, clients: int, families: tuple[str, ...], apart: bool, ratio: float
) -> None:
    """Measure honest clients, first alone and then beside attackers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + 1024), hard))
    chosen = families or tuple(sorted(FAMILIES))
    keys = {
        "honest": {"key": _HONEST_KEY},
        "attacker": {"key": _ATTACKER_KEY},
        "operator": {"key": _ADMIN_KEY, "admin": True},
    }
    settings = {"server": {**TIMEOUTS, "max_connections": connections, "keys": keys}}
    with paddock(settings, f"-np 8 -m {model}", _HONEST_KEY) as server:
        attacker, admin = (replace(server.address, api_key=key) for key in (_ATTACKER_KEY, _ADMIN_KEY))
        experiment = Experiment(server.address, attacker, admin, server.process, connections, clients, ratio)
        asyncio.run(experiment.run([[name] for name in chosen] if apart else [chosen], seconds / 2))
    for phase in experiment.phases:
        print(phase.report(experiment.phases[0]))
    experiment.outcomes.exit()


if __name__ == "__main__":
    main()
