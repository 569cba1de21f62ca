"""`paddock lab determinism`"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from paddock_lab.client import build_info, first_model
from paddock_lab.determinism.experiment import Condition, Experiment, Replica
from paddock_lab.determinism.findings import findings, partings
from paddock_lab.determinism.jobs import built_in, from_file
from paddock_lab.options import CONTEXT, INTERRUPTED, LabCommand, check, common_options, flags, start, tell
from paddock_lab.progress import progress
from paddock_lab.report import Recording, new_folder
from paddock_lab.servers import Entrant, Server, entrants

_PADDOCK = "{python} -m paddock serve --deterministic --port {port}"
_QUESTION = (
    "Do two replicas give the same bytes to the same job, whether or not they have seen it before, and whoever else is "
    "there?"
)


@click.command("determinism", cls=LabCommand, context_settings=CONTEXT)
@click.option(
    "--server",
    "sources",
    multiple=True,
    metavar="[NAME=]COMMAND|URL",
    help="A command, to be started twice; or two of either. [paddock serve --deterministic]",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A prompt a line, or .jsonl with `messages`. [built-in ones]",
)
@click.option(
    "--count", default=50, show_default=True, type=click.IntRange(1), help="How many of the built-in prompts."
)
@click.option("--max-tokens", default=32, show_default=True, type=click.IntRange(1), help="Of an answer.")
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0))
@click.option(
    "--load",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Jobs at once when not alone, beside as many requests that are not compared.",
)
@common_options
def command(
    sources: tuple[str, ...], prompts: Path | None, count: int, max_tokens: int, temperature: float, load: int,
    model: Path | None, model_name: str, api_key: str, start_timeout: float, timeout: float, out: Path | None,
) -> None:  # fmt: skip
    """Ask two identical replicas the same things, with the same seeds, and compare the streams byte for byte.

    Every prompt is sent to each of them four times: cold (started anew) and warm (a second time), alone and under load.
    Half of the seeds come from job ids (docs/guides/http-api.md). The exit status is 1 if an answer differs or fails.

    COMMAND may use {python}, {model} and {port}, and must listen on 127.0.0.1:{port}. Servers at URLs are not started
    anew, so there is no cold pass under load.
    """
    entered = _replicas(entrants(sources or (f"{_PADDOCK} -m {{model}}" if model else _PADDOCK,), "replica"))
    check(entered, model)
    try:
        jobs = from_file(prompts) if prompts else built_in(count)
    except (ValueError, OSError) as problem:
        raise click.BadParameter(str(problem), param_hint="--prompts") from problem
    if not jobs:
        raise click.BadParameter("no prompt in it", param_hint="--prompts")
    anew = not any(entrant.is_url for entrant in entered)
    alone = [Condition("cold", "alone"), Condition("warm", "alone")]
    loaded = [*([Condition("cold", "loaded")] if anew else []), Condition("warm", "loaded")]
    interrupted, about = False, dict[str, str]()
    with Recording(new_folder(out, "determinism"), "Determinism", _QUESTION) as recording:
        experiment = Experiment(jobs, recording, temperature, max_tokens, load, timeout)
        try:
            with progress(len(jobs) * len(entered) * len(alone + loaded)) as advance:
                for conditions in (alone, loaded):
                    with ExitStack() as stack:
                        replicas = []
                        for entrant in entered:
                            server = start(stack, entrant, model=model, seconds=start_timeout, api_key=api_key)
                            replicas.append(_replica(server, model_name))
                            about[server.name] = replicas[-1].about
                        for condition in conditions:
                            asyncio.run(experiment.run(replicas, condition, advance))
        except KeyboardInterrupt:
            interrupted = True
        different = partings(experiment.observations)
        found = findings(experiment.observations, different, experiment.disturbances)
        if not anew:
            found.notes.append("Servers at URLs are not started anew: what they had seen before, cold cannot tell.")
        page = recording.finish(found, partial=interrupted, servers=about, flags=flags())
    tell(found, page, interrupted=interrupted)
    failed = any(seen.error for seen in experiment.observations)
    sys.exit(INTERRUPTED if interrupted else bool(different or failed))


def _replica(server: Server, model_name: str) -> Replica:
    source, build = server.entrant.source, asyncio.run(build_info(server.address))
    model = model_name or asyncio.run(first_model(server.address))
    return Replica(server.name, server.address, model, f"{source} ({build})" if build else source)


def _replicas(entered: list[Entrant]) -> list[Entrant]:
    if len(entered) == 1 and not entered[0].is_url:
        (first,) = entered
        return [replace(first, name=f"{first.name}{number}") for number in (1, 2)]
    if len(entered) != 2:
        raise click.UsageError("--server is one command, or it is given twice")
    return entered
