"""`paddock lab determinism`"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from paddock_lab.determinism.experiment import Condition, Experiment
from paddock_lab.determinism.findings import findings, mismatches
from paddock_lab.determinism.jobs import built_in, from_file
from paddock_lab.options import LabCommand, check, common_options, new_run, start
from paddock_lab.servers import Entrant, entrants
from paddock_lab.targets import identify

_PADDOCK = "{python} -m paddock serve --deterministic --port {port}"
_QUESTION = "Do two replicas give the same bytes for the same job, with a cold and a warm cache, alone and under load?"


@click.command("determinism", cls=LabCommand)
@click.option(
    "--server",
    "sources",
    multiple=True,
    metavar="[NAME=]COMMAND|URL",
    help="A command to start twice, or two commands or URLs. [paddock serve --deterministic]",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="One prompt per line, or .jsonl with `messages`. [built-in prompts]",
)
@click.option("--count", default=50, show_default=True, type=click.IntRange(1), help="Number of built-in prompts.")
@click.option("--max-tokens", default=32, show_default=True, type=click.IntRange(1), help="Tokens of an answer.")
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0))
@click.option(
    "--load",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Concurrent jobs under load, beside as many requests that are not compared.",
)
@common_options
def command(
    sources: tuple[str, ...], prompts: Path | None, count: int, max_tokens: int, temperature: float, load: int,
    model: Path | None, model_name: str, api_key: str, start_timeout: float, timeout: float, out: Path | None,
) -> None:  # fmt: skip
    """Send the same requests with the same seeds to two identical replicas, and compare the streams byte by byte.

    Every prompt is sent to each replica four times: cold (after a restart) and warm (again), alone and under load.
    Half of the seeds come from job ids (docs/guides/http-api.md). The exit status is 1 if an answer differs or fails.

    COMMAND may use {python}, {model} and {port}, and must listen on 127.0.0.1:{port}. Servers at URLs are not
    restarted, so there is no cold pass under load.
    """
    entered = _replicas(entrants(sources or (f"{_PADDOCK} -m {{model}}" if model else _PADDOCK,), "replica"))
    check(entered, model)
    try:
        jobs = from_file(prompts) if prompts else built_in(count)
    except (ValueError, OSError) as problem:
        raise click.BadParameter(str(problem), param_hint="--prompts") from problem
    if not jobs:
        raise click.BadParameter("the file has no prompt", param_hint="--prompts")
    restarted = not any(entrant.is_url for entrant in entered)
    alone = [Condition("cold", "alone"), Condition("warm", "alone")]
    loaded = [*([Condition("cold", "loaded")] if restarted else []), Condition("warm", "loaded")]
    about: dict[str, str] = {}
    with new_run(out, "determinism", "Determinism", _QUESTION) as run:
        experiment = Experiment(jobs, run.recording, temperature, max_tokens, load, timeout)
        with run.measuring(len(jobs) * len(entered) * len(alone + loaded)) as advance:
            for conditions in (alone, loaded):
                with ExitStack() as stack:
                    replicas = []
                    for entrant in entered:
                        server = start(stack, entrant, model=model, seconds=start_timeout, api_key=api_key)
                        replicas.append(asyncio.run(identify(server, model_name)))
                        about[server.name] = replicas[-1].about
                    for condition in conditions:
                        asyncio.run(experiment.run(replicas, condition, advance))
        different = mismatches(experiment.observations)
        found = findings(experiment.observations, different, experiment.background_requests)
        if not restarted:
            found.notes.append("Servers at URLs are not restarted, so a cold request may find a warm cache.")
        failed = bool(different) or any(each.error for each in experiment.observations)
        run.end(found, servers=about, failed=failed, flags={})


def _replicas(entered: list[Entrant]) -> list[Entrant]:
    if len(entered) == 1 and not entered[0].is_url:
        (first,) = entered
        return [replace(first, name=f"{first.name}{number}") for number in (1, 2)]
    if len(entered) != 2:
        raise click.UsageError("give --server once with a command, or twice")
    return entered
