"""`paddock lab routing`"""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from paddock_lab.options import LabCommand, new_run, out_option
from paddock_lab.routing.findings import PADDOCK, Result, findings
from paddock_lab.routing.machines import MACHINES
from paddock_lab.routing.policies import POLICIES
from paddock_lab.routing.simulation import SINGLE, Setting, simulate
from paddock_lab.routing.traffic import Mix

_QUESTION = (
    "Which replica should get a request, so that most of its prompt is cached there and no request waits while other "
    "replicas are idle?"
)
_MIX = Mix()


@click.command("routing", cls=LabCommand)
@click.option(
    "--replicas",
    multiple=True,
    type=click.IntRange(1),
    default=(4, 16, 100),
    show_default=True,
    help="Number of replicas (repeatable). 1000 takes some minutes.",
)
@click.option(
    "--routers",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 4),
    show_default=True,
    help="Number of independent routers (repeatable). With several, only "
    f"{PADDOCK} is simulated: once with one router per user, once with a random router per request.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    default=tuple(POLICIES),
    help="Only this policy (repeatable). [all]",
)
@click.option("--machine", type=click.Choice(list(MACHINES)), default="two-cores", show_default=True)
@click.option("--users", type=click.FloatRange(0), default=_MIX.users, show_default=True, help="Users per replica.")
@click.option(
    "--think",
    type=click.FloatRange(0.001),
    default=_MIX.think,
    show_default=True,
    help="Mean seconds before a question.",
)
@click.option(
    "--turns", type=click.FloatRange(1), default=_MIX.turns, show_default=True, help="Mean turns of a conversation."
)
@click.option(
    "--prompts", type=click.FloatRange(0), default=_MIX.prompts, show_default=True, help="System prompts per replica."
)
@click.option(
    "--one-offs",
    type=click.FloatRange(0),
    default=_MIX.one_offs,
    show_default=True,
    help="Unrelated requests/s per replica.",
)
@click.option(
    "--bursts", type=click.FloatRange(0), default=_MIX.bursts, show_default=True, help="Bursts/s per replica."
)
@click.option(
    "--burst-size", type=click.IntRange(1), default=_MIX.burst_size, show_default=True, help="Requests of a burst."
)
@click.option(
    "--warm-up", type=click.FloatRange(0), default=120, show_default=True, help="Simulated seconds that do not count."
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=240, show_default=True, help="Simulated seconds that count."
)
@click.option("--seed", type=int, default=1, show_default=True, help="The first seed.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Runs of each policy with different traffic.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Simulations in parallel, each in its own process. [cores]",
)
@out_option
def command(
    replicas: Sequence[int], routers: Sequence[int], policies: Sequence[str], machine: str, users: float, think: float,
    turns: float, prompts: float, one_offs: float, bursts: float, burst_size: int, warm_up: float, seconds: float,
    seed: int, seeds: int, jobs: int, out: Path | None,
) -> None:  # fmt: skip
    """Simulate replicas, and compare policies that choose one for each request.

    Users have conversations that begin with one of several system prompts. Unrelated requests, and bursts of requests
    about one new text, come in between. The traffic grows with the number of replicas. Nothing is measured and no model
    is needed: the same seed gives the same figures. With the same seed all policies get the same traffic.
    """
    mix = Mix(users, think, turns, prompts, one_offs, bursts, burst_size)
    settings = [
        Setting(policy, count, through, stay, MACHINES[machine], mix, warm_up, seconds, each)
        for count in replicas
        for each in range(seed, seed + seeds)
        for policy in (SINGLE, *policies)
        for through in (routers if policy == PADDOCK else (1,))
        for stay in ((True, False) if through > 1 else (True,))
    ]
    results: list[Result] = []
    with new_run(out, "routing", "Routing", _QUESTION) as run:
        try:
            with run.measuring(len(settings)) as advance:
                for setting, outcome in _simulated(settings, jobs):
                    results.append((setting, outcome))
                    run.recording.add(asdict(setting) | asdict(outcome))
                    advance(f"{setting.replicas} replicas, seed {setting.seed}: {setting.policy}")
        except ValueError as problem:
            raise click.UsageError(str(problem)) from problem
        run.end(findings(results), servers={}, failed=False, flags={})


def _simulated(settings: Sequence[Setting], jobs: int) -> Iterator[Result]:
    """The settings with their outcomes, in order."""
    if jobs == 1 or len(settings) == 1:
        yield from ((setting, simulate(setting)) for setting in settings)
        return
    # Spawned, not forked: the progress bar has a thread. Leaving the block ends the processes.
    with _pool(min(jobs, len(settings))) as pool:
        yield from zip(settings, pool.imap(simulate, settings), strict=True)


def _pool(processes: int) -> multiprocessing.pool.Pool:
    """Its processes ignore Ctrl-C, which a terminal sends to all processes: this one handles it. They inherit the
    setting, because an interrupt may come before they have started.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return multiprocessing.get_context("spawn").Pool(processes)
    finally:
        signal.signal(signal.SIGINT, before)
