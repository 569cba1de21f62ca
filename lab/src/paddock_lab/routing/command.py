"""`paddock lab routing`"""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from paddock_lab.options import CONTEXT, INTERRUPTED, LabCommand, flags, tell
from paddock_lab.progress import progress
from paddock_lab.report import Recording, new_folder
from paddock_lab.routing.findings import OURS, Seen, findings
from paddock_lab.routing.machines import MACHINES
from paddock_lab.routing.policies import POLICIES
from paddock_lab.routing.simulation import BIG, Setting, simulate
from paddock_lab.routing.traffic import Mix

_QUESTION = (
    "Which of many replicas should get a request, so that most of its prompt is known there and none has to wait while "
    "others are idle?"
)
_MIX = Mix()


@click.command("routing", cls=LabCommand, context_settings=CONTEXT)
@click.option(
    "--replicas",
    multiple=True,
    type=click.IntRange(1),
    default=(4, 16, 100),
    show_default=True,
    help="How many (repeatable). 1000 takes some minutes.",
)
@click.option(
    "--routers",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 4),
    show_default=True,
    help="That know nothing of each other (repeatable). With several only "
    f"{OURS} is tried, with users who stay at one of them and with requests that come through any.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    default=tuple(POLICIES),
    help="Try only these (repeatable). [all]",
)
@click.option("--machine", type=click.Choice(list(MACHINES)), default="two-cores", show_default=True)
@click.option("--users", type=click.FloatRange(0), default=_MIX.users, show_default=True, help="Of each replica.")
@click.option(
    "--think", type=click.FloatRange(0.001), default=_MIX.think, show_default=True, help="Seconds before a question."
)
@click.option("--turns", type=click.FloatRange(1), default=_MIX.turns, show_default=True, help="Of a conversation.")
@click.option("--prompts", type=click.FloatRange(0), default=_MIX.prompts, show_default=True, help="System prompts.")
@click.option("--one-offs", type=click.FloatRange(0), default=_MIX.one_offs, show_default=True, help="In a second.")
@click.option("--bursts", type=click.FloatRange(0), default=_MIX.bursts, show_default=True, help="In a second.")
@click.option("--burst-size", type=click.IntRange(1), default=_MIX.burst_size, show_default=True, help="Requests.")
@click.option("--warm-up", type=click.FloatRange(0), default=120, show_default=True, help="Seconds that do not count.")
@click.option("--seconds", type=click.FloatRange(1), default=240, show_default=True, help="That do; simulated ones.")
@click.option("--seed", type=int, default=1, show_default=True, help="The first of the seeds.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Runs of each policy with other traffic, from which intervals are made.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Simulations at once, each in a process of its own. [cores]",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[lab-results/NAME-DATE]")
def command(
    replicas: Sequence[int], routers: Sequence[int], policies: Sequence[str], machine: str, users: float, think: float,
    turns: float, prompts: float, one_offs: float, bursts: float, burst_size: int, warm_up: float, seconds: float,
    seed: int, seeds: int, jobs: int, out: Path | None,
) -> None:  # fmt: skip
    """Simulate pools of replicas, and compare ways to choose one for each request.

    Users have conversations that begin with one of several system prompts; between them come requests that have nothing
    in common with others, and bursts of them about one new text. What is said of them is for each replica, so that a
    larger pool has more to do. Nothing is measured and no model is needed: the same seed gives the same figures. All
    policies get the same traffic for each of several seeds.
    """
    mix = Mix(users, think, turns, prompts, one_offs, bursts, burst_size)
    settings = [
        Setting(policy, count, through, stay, MACHINES[machine], mix, warm_up, seconds, each)
        for count in replicas
        for each in range(seed, seed + seeds)
        for policy in (BIG, *policies)
        for through in (routers if policy == OURS else (1,))
        for stay in ((True, False) if through > 1 else (True,))
    ]
    interrupted, seen = False, list[Seen]()
    with Recording(new_folder(out, "routing"), "Routing", _QUESTION) as recording:
        try:
            with progress(len(settings)) as advance:
                for setting, outcome in _simulated(settings, jobs):
                    seen.append((setting, outcome))
                    recording.add(asdict(setting) | asdict(outcome))
                    advance(f"{setting.replicas} replicas, seed {setting.seed}: {setting.policy}")
        except ValueError as problem:
            raise click.UsageError(str(problem)) from problem
        except KeyboardInterrupt:
            interrupted = True
        found = findings(seen)
        page = recording.finish(found, partial=interrupted, servers={}, flags=flags())
    tell(found, page, interrupted=interrupted)
    sys.exit(INTERRUPTED if interrupted else 0)


def _simulated(settings: Sequence[Setting], jobs: int) -> Iterator[Seen]:
    """Each with its outcome, in the order given."""
    if jobs == 1 or len(settings) == 1:
        yield from ((setting, simulate(setting)) for setting in settings)
        return
    # Spawned, not forked: the progress bar has a thread. Leaving the block ends them, in the middle of a run too.
    with _pool(min(jobs, len(settings))) as pool:
        yield from zip(settings, pool.imap(simulate, settings), strict=True)


def _pool(processes: int) -> multiprocessing.pool.Pool:
    """Its processes ignore Ctrl-C, which goes to all processes of a terminal: the first one decides. They inherit that,
    because an interrupt may come before they have started.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return multiprocessing.get_context("spawn").Pool(processes)
    finally:
        signal.signal(signal.SIGINT, before)
