"""`paddock bench`"""

from __future__ import annotations

import asyncio
import random
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
from paddock_lab.client import ChatFailed
from paddock_lab.options import LabCommand, check, common_options, new_run, servers_option, start
from paddock_lab.report import Cell, Findings, Table
from paddock_lab.servers import entrants, resident_bytes, running
from paddock_lab.targets import Target, connect
from paddock_lab.words import words_per_token

_PADDOCK = "paddock={python} -m paddock serve --port {port}"
_QUESTION = "How do these servers compare under the same loads?"


class _Numbers(click.ParamType[list[float]]):
    """One number, or several separated by commas."""

    name = "N[,N...]"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        try:
            return [self._kind(each) for each in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a number or a list of numbers separated by commas", param, ctx)


@click.command("bench", cls=LabCommand)
@click.argument("scenario", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@servers_option
@click.option("--load", "chosen", multiple=True, metavar="NAME", help="Only this load of the scenario (repeatable).")
@click.option("--concurrency", type=_Numbers(int), help="Clients; each sends its next request after an answer. [4]")
@click.option("--rate", type=_Numbers(float), help="Instead: conversations started per second, at random times.")
@click.option("--requests", type=int, metavar="N", help="Requests in total. [32]")
@click.option("--requests-per-client", type=int, metavar="N", help="Instead: requests of each client.")
@click.option("--duration", type=float, metavar="SECONDS", help="Instead: how long requests are started.")
@click.option("--prompt", metavar="LENGTH", help="Tokens of a prompt. [256]")
@click.option("--output", metavar="LENGTH", help="Tokens of an answer. [128]")
@click.option(
    "--conversations",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Conversations: JSON lines with `messages`, or the ShareGPT format. [synthetic texts]",
)
@click.option("--shared-prefix", type=int, metavar="TOKENS", help="Length of a shared system prompt. [0]")
@click.option("--shared-share", type=float, metavar="SHARE", help="Share of conversations with that prompt. [1]")
@click.option("--turns", type=int, metavar="N", help="Turns of a conversation. [1]")
@click.option("--turn-prompt", metavar="LENGTH", help="Tokens of the user message in later turns. [12]")
@click.option("--interleaved", is_flag=True, default=None, help="Send all first turns before any second turn.")
@click.option(
    "--cancel-share", type=float, metavar="SHARE", help="Share of clients that disconnect during the answer. [0]"
)
@click.option("--interference", type=int, metavar="TOKENS", help="Length of long prompts sent in between. [0: none]")
@click.option(
    "--interference-every", type=float, metavar="SECONDS", help="Send more of them at this interval. [only once]"
)
@click.option("--warm-up", type=int, metavar="N", help="Short requests before each load; not counted. [1]")
@click.option(
    "--probe",
    "probes",
    multiple=True,
    type=click.Choice(list(PROBES)),
    help="A further measurement (repeatable). Without flags of a load, only this is measured.",
)
@click.option("--other-key", default="", metavar="KEY", help="A second API key, for --probe fairness.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0))
@click.option(
    "--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Keeps answers at the requested length."
)
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Multiply all lengths by this, for a quick trial.",
)
@click.option("--seed", type=int, help="Seed of texts, arrival times and order. [random]")
@common_options
def command(
    scenario: Path | None, sources: tuple[str, ...], chosen: tuple[str, ...], probes: tuple[str, ...],
    other_key: str, rounds: int, temperature: float, ignore_eos: bool, scale: float, seed: int | None,
    model: Path | None, model_name: str, api_key: str, start_timeout: float, timeout: float, out: Path | None,
    **given: Any,
) -> None:  # fmt: skip
    """Put one or more servers under the same loads, one after another, and compare them.

    SCENARIO is a file of several loads (docs/guides/experiments.md); flags apply to all of them. LENGTH is 512,
    uniform:100-800 or lognormal:400,0.6. Several values of --concurrency or --rate give a curve.

    COMMAND may use {python}, {model} and {port}, and must listen on 127.0.0.1:{port}. The other servers are compared
    with the first one. Ctrl-C ends the run early; the report then has the measurements so far.
    """
    if "fairness" in probes and not other_key:
        raise click.UsageError("--probe fairness needs two keys: --api-key and --other-key")
    load_flags = {name: value for name, value in given.items() if value is not None}
    loads = _loads(scenario, load_flags, chosen) if scenario or load_flags or chosen or not probes else {}
    recorded, documents = _recorded(loads.values()), _documents(loads.values())
    entered = entrants(sources or (f"{_PADDOCK} -m {{model}}" if model else _PADDOCK,), "server")
    check(entered, model)
    seed = random.randrange(2**31) if seed is None else seed
    wanted = list(points(loads))
    with ExitStack() as stack, new_run(out, "bench", "Servers under load", _QUESTION) as run:
        targets = []
        for entrant in entered:
            server = start(stack, entrant, model=model, seconds=start_timeout, api_key=api_key)
            connecting = connect(server, model=model_name, temperature=temperature, ignore_eos=ignore_eos)
            try:
                targets.append(asyncio.run(asyncio.wait_for(connecting, timeout)))
            except (ChatFailed, OSError) as failure:
                why = str(failure) or type(failure).__name__
                raise click.ClickException(f"{server.name} does not answer a chat request: {why}") from failure
        experiment = Experiment(
            targets,
            wanted,
            run.recording,
            partial(_another_process, model=model, seconds=start_timeout, api_key=api_key),
            seed,
            words_per_token(target.count_tokens for target in targets),
            scale,
            timeout,
            recorded,
            documents,
            probes,
            other_key,
        )
        with run.measuring(rounds * (len(wanted) + len(probes)) * len(targets)) as advance:
            experiment.run(rounds, advance)
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
        answered = {*(span.place.server for span in experiment.spans), *(each.server for each in experiment.results)}
        run.end(found, servers=servers, failed=len(answered) < len(targets), flags={"seed": seed, **_described(wanted)})


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


def _documents(loads: Iterable[Load]) -> dict[str, str]:
    try:
        return {load.document: Path(load.document).read_text("utf-8") for load in loads if load.document}
    except (ValueError, OSError) as problem:
        raise click.UsageError(f"the document of a load: {problem}") from problem


@contextmanager
def _another_process(target: Target, *, model: Path | None, seconds: float, api_key: str) -> Iterator[Target]:
    """Another process of the same server."""
    with running(target.server.entrant, {"model": str(model)}, seconds, api_key) as server:
        yield replace(target, server=server)


def _memory(targets: Sequence[Target]) -> list[Table]:
    """Memory of the servers that were started here."""
    rows: list[tuple[Cell, ...]] = []
    for target in targets:
        if resident := [each / 2**20 for each in resident_bytes(target.server)]:
            rows.append((target.name, sum(resident), max(resident)))
    columns = ("server", "all processes (MiB)", "the largest (MiB)")
    return [Table("Resident memory at the end", columns, rows)] if rows else []


def _described(wanted: Sequence[tuple[str, Point]]) -> dict[str, str]:
    """Each load with all of its keys, for the report."""
    return {
        f"load {name}": ", ".join(
            f"{key} {getattr(load, key)}"
            for key in load.__struct_fields__
            if getattr(load, key) not in (None, [], [""])
        )
        for name, load in {name: point.load for name, point in wanted}.items()
    }
