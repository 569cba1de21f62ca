"""`paddock lab prefix-cache`"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click

from paddock_lab.options import CONTEXT, INTERRUPTED, LabCommand, check, common_options, flags, start, tell
from paddock_lab.prefix_cache.backends import Backend, HttpBackend
from paddock_lab.prefix_cache.designs import Sizes, removal, tenants
from paddock_lab.prefix_cache.experiment import Experiment
from paddock_lab.prefix_cache.findings import about_quantization, of_removal, of_tenants
from paddock_lab.progress import progress
from paddock_lab.report import Recording, new_folder
from paddock_lab.servers import entrants
from paddock_lab.words import words_per_token

_PADDOCK = "paddock={python} -m paddock serve --port {port}"
_SPARE = 1024
"""Tokens of the binding's context for turns, answers and the template."""

Design = Literal["removal", "tenants"]

_QUESTIONS: dict[Design, str] = {
    "removal": "How much sooner does an answer begin when the server knows the beginning of the prompt, and how much "
    "of that is lost when context A is removed from it?",
    "tenants": "When many tenants share context A and each has more of its own, what does a server still know when one "
    "of them comes back or joins?",
}


@click.command("prefix-cache", cls=LabCommand, context_settings=CONTEXT)
@click.option(
    "--server", "sources", multiple=True, metavar="NAME=URL|COMMAND", help="A server to measure (repeatable). [Paddock]"
)
@click.option(
    "--binding",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="MODEL.gguf",
    help="Measure llama-cpp-python in this process too.",
)
@click.option("--design", type=click.Choice(["removal", "tenants"]), default="removal", show_default=True)
@click.option("--trials", default=20, show_default=True, type=click.IntRange(1), help="That count.")
@click.option("--warm-up", default=1, show_default=True, type=click.IntRange(0), help="Trials before them that do not.")
@click.option("--a-tokens", default=1000, show_default=True, type=click.IntRange(1), help="Size of context A.")
@click.option("--b-tokens", default=500, show_default=True, type=click.IntRange(1), help="Size of context B.")
@click.option("--max-tokens", default=8, show_default=True, type=click.IntRange(1), help="Of an answer.")
@click.option("--tenants", "tenant_count", default=12, show_default=True, type=click.IntRange(2), help="Who share A.")
@click.option("--visits", default=3, show_default=True, type=click.IntRange(1), help="Of each tenant, in one trial.")
@click.option("--pin-slot", type=click.IntRange(0), metavar="N", help="Send id_slot, to servers that have slots.")
@click.option("--seed", type=int, help="Of texts and order. [another in each run, so that no server knows the texts]")
@common_options
def command(
    sources: tuple[str, ...], binding: Path | None, design: Design, trials: int, warm_up: int, a_tokens: int,
    b_tokens: int, max_tokens: int, tenant_count: int, visits: int, pin_slot: int | None, seed: int | None,
    model: Path | None, model_name: str, api_key: str, start_timeout: float, timeout: float, out: Path | None,
) -> None:  # fmt: skip
    """Measure what a known prefix is worth: the time to the first token with and without it.

    removal: warm up with contexts A and B; then the same with a new turn (T2, a hit), then without A (T3, a miss). What
    counts is T3/T2. tenants: many share A and have a B each, and come and come back in random order.

    COMMAND may use {python}, {model} and {port}, and must listen on 127.0.0.1:{port}. All servers are measured in one
    run, trial by trial in random order. Ctrl-C ends it early, and what there is becomes the report.
    """
    if not sources and binding is None:
        sources = (f"{_PADDOCK} -m {{model}}" if model else _PADDOCK,)
    entered = entrants(sources, "server")
    check(entered, model, ["binding", "binding-jinja"] if binding else [])
    seed = random.randrange(2**31) if seed is None else seed
    chance, interrupted = random.Random(seed), False
    title = "Prefix cache" if design == "removal" else "Prefix cache: many tenants share A"
    with ExitStack() as stack, Recording(new_folder(out, "prefix-cache"), title, _QUESTIONS[design]) as recording:
        backends: list[Backend] = []
        for entrant in entered:
            server = start(stack, entrant, model=model, seconds=start_timeout, api_key=api_key)
            backends.append(HttpBackend(server, model=model_name, slot=pin_slot, seconds=timeout))
        if binding:
            # Not before it is needed: it brings native code into this process.
            from paddock_lab.prefix_cache.binding import open_binding

            backends += open_binding(binding, context=round(1.2 * (a_tokens + b_tokens)) + _SPARE)
        sizes = Sizes(a_tokens, b_tokens, words_per_token(backend.count_tokens for backend in backends))
        count = warm_up + trials
        steps = (
            removal(sizes, count, chance)
            if design == "removal"
            else tenants(sizes, count, chance, count=tenant_count, visits=visits)
        )
        experiment = Experiment(backends, recording, random.Random(seed), max_tokens, warm_up)
        try:
            with progress(count * len(backends)) as advance:
                experiment.run(steps, advance)
        except KeyboardInterrupt:
            interrupted = True
        findings = (of_removal if design == "removal" else of_tenants)(
            experiment.observations, [backend.name for backend in backends]
        )
        findings.notes.append(about_quantization({backend.name: backend.bits_per_weight for backend in backends}))
        findings.notes += [note for backend in backends for note in backend.notes]
        servers = {backend.name: backend.about for backend in backends}
        page = recording.finish(findings, partial=interrupted, servers=servers, flags={**flags(), "seed": seed})
    tell(findings, page, interrupted=interrupted)
    answered = {seen.backend for seen in experiment.observations if not seen.dropped and not seen.error}
    sys.exit(INTERRUPTED if interrupted else len(answered) < len(backends))
