"""The command line: `python -m paddock_lab.abuse`."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from paddock_lab.abuse.attack import TIMEOUTS, Target
from paddock_lab.abuse.experiment import Experiment
from paddock_lab.abuse.families import FAMILIES
from paddock_lab.servers import Entrant, running

_HONEST_KEY, _ATTACKER_KEY, _OPERATOR_KEY = "honest-client-key", "attacker-key", "operator-key"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", default="fake:delay=0.01", show_default=True, metavar="FILE", help="A GGUF file, or fake:.")
@click.option("--seconds", default=60.0, show_default=True, help="Half of them calm.")
@click.option(
    "--connections",
    default=1000,
    show_default=True,
    help="The limit, and how many `connections` holds.",
)
@click.option("--clients", default=2, show_default=True, help="Honest ones.")
@click.option("--family", "families", multiple=True, type=click.Choice(sorted(FAMILIES)), help="Default: all of them.")
@click.option("--apart", is_flag=True, help="A storm for each family, each as long as the calm.")
@click.option("--ratio", default=3.0, show_default=True, help="First token in a storm against calm; 0: only reported.")
def main(
    model: str, seconds: float, connections: int, clients: int, families: tuple[str, ...], apart: bool, ratio: float
) -> None:
    """Serve honest clients, at first alone and then among attackers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + 1024), hard))
    chosen = families or tuple(sorted(FAMILIES))
    with tempfile.TemporaryDirectory(prefix="paddock-abuse-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"server": _server_settings(connections)}))
        command = f"{{python}} -m paddock serve --config {config} --port {{port}} -np 8 -m {model}"
        with running(Entrant("paddock", command), {}, 60, _HONEST_KEY) as server:
            assert server.process is not None, "it was started here"
            target = Target(replace(server.address, api_key=_ATTACKER_KEY))
            operator = replace(server.address, api_key=_OPERATOR_KEY)
            experiment = Experiment(server.address, target, server.process, connections, clients, ratio, operator)
            asyncio.run(experiment.run([[name] for name in chosen] if apart else [chosen], seconds / 2))
    outcomes, phases = experiment.outcomes, experiment.phases
    for phase in phases:
        print(phase.told(phases[0]))
    for outcome, count in sorted(outcomes.counts.items()):
        print(f"{count:7} {outcome}")
    for violation in outcomes.violations:
        print(f"VIOLATION {violation}")
    print(f"{len(outcomes.violations):7} violations")
    sys.exit(1 if outcomes.violations else 0)


def _server_settings(connections: int) -> dict[str, object]:
    keys: dict[str, dict[str, object]] = {"honest": {"key": _HONEST_KEY}, "attacker": {"key": _ATTACKER_KEY}}
    keys["operator"] = {"key": _OPERATOR_KEY, "admin": True}
    return {**TIMEOUTS, "max_connections": connections, "keys": keys}


if __name__ == "__main__":
    main()
