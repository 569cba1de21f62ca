"""`paddock bench`"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from paddock_lab.bench.conversations import Recorded, from_file
from paddock_lab.bench.experiment import Experiment, rows_of
from paddock_lab.bench.findings import findings
from paddock_lab.bench.loads import BadScenario, Load, Point, points, read
from paddock_lab.bench.probes import PROBES, probe_summary, probe_table
from paddock_lab.bench.targets import Target, meet
from paddock_lab.client import ChatFailed
from paddock_lab.options import CONTEXT, INTERRUPTED, LabCommand, check, common_options, flags, start, tell
from paddock_lab.progress import progress
from paddock_lab.report import Cell, Findings, Recording, Table, new_folder
from paddock_lab.servers import entrants, resident_bytes, running
from paddock_lab.words import words_per_token

_PADDOCK = "paddock={python} -m paddock serve --port {port}"
_QUESTION = "How do these servers bear the same loads, and how do they compare?"


class _Numbers(click.ParamType[list[float]]):
    """One number, or several between commas."""

    name = "N[,N...]"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        try:
            return [self._kind(each) for each in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no number, nor several between commas", param, ctx)


@click.command("bench", cls=LabCommand, context_settings=CONTEXT)
@click.argument("scenario", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--server", "sources", multiple=True, metavar="NAME=URL|COMMAND", help="A server to measure (repeatable). [Paddock]"
)
@click.option("--load", "chosen", multiple=True, metavar="NAME", help="Of the scenario's loads only this (repeatable).")
@click.option("--concurrency", type=_Numbers(int), help="Clients that ask again when they are answered. [4]")
@click.option("--rate", type=_Numbers(float), help="Conversations begun in a second, at random moments, instead.")
@click.option("--requests", type=int, metavar="N", help="How many in all. [32]")
@click.option("--requests-per-client", type=int, metavar="N", help="Of each client, instead.")
@click.option("--duration", type=float, metavar="SECONDS", help="In which requests are begun, instead.")
@click.option("--prompt", metavar="LENGTH", help="Tokens of a prompt. [256]")
@click.option("--output", metavar="LENGTH", help="Tokens of an answer. [128]")
@click.option(
    "--conversations",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="What is said: JSON lines with `messages`, or ShareGPT's shape. [texts made up]",
)
@click.option("--shared-prefix", type=int, metavar="TOKENS", help="Of a system text that many have in common. [0]")
@click.option("--shared-share", type=float, metavar="SHARE", help="Of the conversations, those that have it. [1]")
@click.option("--turns", type=int, metavar="N", help="Of a conversation. [1]")
@click.option("--turn-prompt", metavar="LENGTH", help="Tokens of what is said in later turns. [12]")
@click.option("--interleaved", is_flag=True, default=None, help="All first turns come before any second one.")
@click.option("--cancel-share", type=float, metavar="SHARE", help="Of clients that leave in mid-answer. [0]")
@click.option("--interference", type=int, metavar="TOKENS", help="Of long prompts that come in between. [0: none]")
@click.option("--interference-every", type=float, metavar="SECONDS", help="More of them come so often. [once only]")
@click.option("--warm-up", type=int, metavar="N", help="Short requests before each load, which do not count. [1]")
@click.option(
    "--probe",
    "probes",
    multiple=True,
    type=click.Choice(list(PROBES)),
    help="Measure this too, or without flags of a load instead (repeatable).",
)
@click.option("--other-key", default="", metavar="KEY", help="A second API key, for --probe fairness.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0))
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="So that answers are that long.")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="All lengths times this, to try things out.",
)
@click.option("--seed", type=int, help="Of texts, moments and order. [another in each run]")
@common_options
def command(
    scenario: Path | None, sources: tuple[str, ...], chosen: tuple[str, ...], probes: tuple[str, ...],
    other_key: str, rounds: int, temperature: float, ignore_eos: bool, scale: float, seed: int | None,
    model: Path | None, model_name: str, api_key: str, start_timeout: float, timeout: float, out: Path | None,
    **given: Any,
) -> None:  # fmt: skip
    """Put one or more servers under the same loads, in turn, and compare them.

    SCENARIO is a file of several loads (docs/guides/experiments.md); flags apply to all of them. LENGTH is 512,
    uniform:100-800 or lognormal:400,0.6. Several values of --concurrency or --rate give a curve.

    COMMAND may use {python}, {model} and {port}, and must listen on 127.0.0.1:{port}. The others are compared with the
    server that is named first. Ctrl-C ends it early, and what there is becomes the report.
    """
    if "fairness" in probes and not other_key:
        raise click.UsageError("--probe fairness needs two keys: --api-key and --other-key")
    load_flags = {name: value for name, value in given.items() if value is not None}
    loads = _loads(scenario, load_flags, chosen) if scenario or load_flags or chosen or not probes else {}
    recorded = _recorded(loads.values())
    entered = entrants(sources or (f"{_PADDOCK} -m {{model}}" if model else _PADDOCK,), "server")
    check(entered, model)
    seed = random.randrange(2**31) if seed is None else seed
    wanted, interrupted = list(points(loads)), False
    with ExitStack() as stack, Recording(new_folder(out, "bench"), "Servers under load", _QUESTION) as recording:
        targets = []
        for entrant in entered:
            server = start(stack, entrant, model=model, seconds=start_timeout, api_key=api_key)
            meeting = meet(server, model=model_name, temperature=temperature, ignore_eos=ignore_eos)
            try:
                targets.append(asyncio.run(asyncio.wait_for(meeting, timeout)))
            except (ChatFailed, OSError) as failure:
                why = str(failure) or type(failure).__name__
                raise click.ClickException(f"{server.name} cannot chat: {why}") from failure
        experiment = Experiment(
            targets,
            wanted,
            recording,
            partial(_copied, model=model, seconds=start_timeout, api_key=api_key),
            seed,
            words_per_token(target.count_tokens for target in targets),
            scale,
            timeout,
            recorded,
            probes,
            other_key,
        )
        try:
            with progress(rounds * (len(wanted) + len(probes)) * len(targets)) as advance:
                experiment.run(rounds, advance)
        except KeyboardInterrupt:
            interrupted = True
        names = [target.name for target in targets]
        found = findings(experiment.requests, experiment.spans, rows_of(wanted), names) if wanted else Findings()
        if experiment.results:
            table = probe_table(experiment.results, names)
            found.tables.append(table)
            found.summary += probe_summary(table)
        found.tables += _memory(targets)
        found.notes += [*(note for target in targets for note in target.notes), *experiment.notes]
        if scale != 1:
            found.notes.append(f"All lengths were multiplied by {scale:g}.")
        servers = {target.name: target.about for target in targets}
        given_or_usual = {name: value for name, value in flags().items() if value is not None}
        shown = {**given_or_usual, "seed": seed, **_described(wanted)}
        page = recording.finish(found, partial=interrupted, servers=servers, flags=shown)
    tell(found, page, interrupted=interrupted)
    answered = {*(span.place.server for span in experiment.spans), *(each.server for each in experiment.results)}
    sys.exit(INTERRUPTED if interrupted else len(answered) < len(targets))


def _loads(scenario: Path | None, given: dict[str, Any], chosen: Sequence[str]) -> dict[str, Load]:
    try:
        return read(scenario, given, chosen)
    except BadScenario as problem:
        raise click.UsageError(str(problem)) from problem


def _recorded(loads: Iterable[Load]) -> dict[str, list[Recorded]]:
    found = {}
    for name in {load.conversations for load in loads if load.conversations}:
        try:
            found[name] = from_file(Path(name))
        except (ValueError, OSError) as problem:
            raise click.UsageError(f"{name}: {problem}") from problem
    return found


@contextmanager
def _copied(target: Target, *, model: Path | None, seconds: float, api_key: str) -> Iterator[Target]:
    """Another process of the same server."""
    with running(target.server.entrant, {"model": str(model)}, seconds, api_key) as server:
        yield replace(target, server=server)


def _memory(targets: Sequence[Target]) -> list[Table]:
    """Of the servers that were started here."""
    rows: list[tuple[Cell, ...]] = []
    for target in targets:
        if resident := [each / 2**20 for each in resident_bytes(target.server)]:
            rows.append((target.name, sum(resident), max(resident)))
    columns = ("server", "all processes (MiB)", "the largest (MiB)")
    return [Table("Resident memory in the end", columns, rows)] if rows else []


def _described(wanted: Sequence[tuple[str, Point]]) -> dict[str, str]:
    """Each load with all of its keys, so that the page stands for itself."""
    return {
        f"load {name}": ", ".join(
            f"{key} {getattr(load, key)}"
            for key in load.__struct_fields__
            if getattr(load, key) not in (None, [], [""])
        )
        for name, load in {name: point.load for name, point in wanted}.items()
    }
