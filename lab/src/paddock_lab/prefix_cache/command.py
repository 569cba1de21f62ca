"""`paddock lab prefix-cache`"""

from __future__ import annotations

import importlib.util
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click

from paddock_lab.options import LabCommand, check, common_options, new_run, servers_option, start
from paddock_lab.prefix_cache.backends import Backend, HttpBackend
from paddock_lab.prefix_cache.designs import Sizes, removal, tenants
from paddock_lab.prefix_cache.experiment import Experiment
from paddock_lab.prefix_cache.findings import quantization_note, removal_findings, tenant_findings
from paddock_lab.servers import entrants
from paddock_lab.words import words_per_token

_PADDOCK = "paddock={python} -m paddock serve --port {port}"
_SPARE = 1024
"""Tokens of the binding's context for turns, answers and the template."""

Design = Literal["removal", "tenants"]

_QUESTIONS: dict[Design, str] = {
    "removal": "How much faster is the first token with a cached prefix, and how much of that is lost when context A "
    "is removed from the prompt?",
    "tenants": "When many tenants share context A and each has its own context B, how much is cached when a tenant "
    "returns or joins?",
}


@click.command("prefix-cache", cls=LabCommand)
@servers_option
@click.option(
    "--binding",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="MODEL.gguf",
    help="Measure llama-cpp-python in this process too. It must be installed.",
)
@click.option("--design", type=click.Choice(["removal", "tenants"]), default="removal", show_default=True)
@click.option("--trials", default=20, show_default=True, type=click.IntRange(1), help="Trials that count.")
@click.option(
    "--warm-up", default=1, show_default=True, type=click.IntRange(0), help="Trials before them that do not count."
)
@click.option("--a-tokens", default=1000, show_default=True, type=click.IntRange(1), help="Size of context A.")
@click.option("--b-tokens", default=500, show_default=True, type=click.IntRange(1), help="Size of context B.")
@click.option("--max-tokens", default=8, show_default=True, type=click.IntRange(1), help="Tokens of an answer.")
@click.option(
    "--tenants", "tenant_count", default=12, show_default=True, type=click.IntRange(2), help="Tenants that share A."
)
@click.option(
    "--visits", default=3, show_default=True, type=click.IntRange(1), help="Requests of each tenant in one trial."
)
@click.option("--pin-slot", type=click.IntRange(0), metavar="N", help="Send id_slot, to servers that have slots.")
@click.option("--seed", type=int, help="Seed of texts and order. [random, so that no text is cached]")
@common_options
def command(
    sources: tuple[str, ...], binding: Path | None, design: Design, trials: int, warm_up: int, a_tokens: int,
    b_tokens: int, max_tokens: int, tenant_count: int, visits: int, pin_slot: int | None, seed: int | None,
    model: Path | None, model_name: str, api_key: str, start_timeout: float, timeout: float, out: Path | None,
) -> None:  # fmt: skip
    """Measure the time to the first token with and without a cached prefix.

    removal: send contexts A and B; then the same with a new turn (T2, a hit), then without A (T3, a miss). The result
    is T3/T2. tenants: many tenants share A, have their own B, and send requests in random order.

    COMMAND may use {python}, {model} and {port}, and must listen on 127.0.0.1:{port}. All servers are measured in one
    run, in random order in each trial. Ctrl-C ends the run early; the report then has the measurements so far.
    """
    if not sources and binding is None:
        sources = (f"{_PADDOCK} -m {{model}}" if model else _PADDOCK,)
    if binding and importlib.util.find_spec("llama_cpp") is None:
        raise click.UsageError("--binding needs llama-cpp-python, which is not installed: pip install llama-cpp-python")
    entered = entrants(sources, "server")
    check(entered, model, ["binding", "binding-jinja"] if binding else [])
    seed = random.randrange(2**31) if seed is None else seed
    rng = random.Random(seed)
    title = "Prefix cache" if design == "removal" else "Prefix cache: many tenants share A"
    with ExitStack() as stack, new_run(out, "prefix-cache", title, _QUESTIONS[design]) as run:
        backends: list[Backend] = []
        for entrant in entered:
            server = start(stack, entrant, model=model, seconds=start_timeout, api_key=api_key)
            backends.append(HttpBackend(server, model=model_name, slot=pin_slot, seconds=timeout))
        if binding:
            # Imported only if needed: it loads native code into this process.
            from paddock_lab.prefix_cache.binding import open_binding

            backends += open_binding(binding, context=round(1.2 * (a_tokens + b_tokens)) + _SPARE)
        sizes = Sizes(a_tokens, b_tokens, words_per_token(backend.count_tokens for backend in backends))
        count = warm_up + trials
        steps = (
            removal(sizes, count, rng)
            if design == "removal"
            else tenants(sizes, count, rng, count=tenant_count, visits=visits)
        )
        experiment = Experiment(backends, run.recording, random.Random(seed), max_tokens, warm_up)
        with run.measuring(count * len(backends)) as advance:
            experiment.run(steps, advance)
        findings = (removal_findings if design == "removal" else tenant_findings)(
            experiment.observations, [backend.name for backend in backends]
        )
        findings.notes.append(quantization_note({backend.name: backend.bits_per_weight for backend in backends}))
        findings.notes += [note for backend in backends for note in backend.notes]
        servers = {backend.name: backend.about for backend in backends}
        answered = {each.backend for each in experiment.observations if not each.dropped and not each.error}
        run.end(findings, servers=servers, failed=len(answered) < len(backends), flags={"seed": seed})
