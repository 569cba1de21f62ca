"""What `paddock bench` has no words for, on Paddock and its peers: /tokenize, one body, unloaded models, two keys."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from paddock_lab.options import check
from paddock_lab.servers import Entrant, Server, StartFailed, entrants, running
from paddock_lab.serving.bench import Bench, say
from paddock_lab.serving.keys import USUAL_KEY, write_keys
from paddock_lab.serving.report import as_json, summary
from paddock_lab.serving.scenarios import SCENARIOS, Settings

_PADDOCK = "{python} -m paddock serve -m {model} -c {ctx} -t {threads} -fa on -np 8 --port {port} --config {keys}"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="GGUF file for {model}.")
@click.option("--threads", default=2, show_default=True, help="For {threads}.")
@click.option("--ctx", default=16384, show_default=True, help="For {ctx}.")
@click.option("--paddock", multiple=True, metavar="[NAME=]COMMAND", default=[_PADDOCK], show_default=True)
@click.option("--peer", multiple=True, metavar="[NAME=]COMMAND|URL", help="A peer to compare with (repeatable).")
@click.option("--scenario", "chosen", multiple=True, required=True, type=click.Choice(list(SCENARIOS)))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True)
@click.option("--model-name", default="default", show_default=True, help="`model` in the requests.")
@click.option("--scale", default=1.0, show_default=True, help="Lengths and numbers times this, to try things out.")
@click.option("--scenario-timeout", default=900.0, show_default=True, metavar="SECONDS")
@click.option("--start-timeout", default=120.0, show_default=True, metavar="SECONDS")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Raw numbers go here.")
def main(
    model: Path | None, threads: int, ctx: int, paddock: tuple[str, ...], peer: tuple[str, ...],
    chosen: tuple[str, ...], rounds: int, temperature: float, ignore_eos: bool, model_name: str,
    scale: float, scenario_timeout: float, start_timeout: float, json_path: Path | None,
) -> None:  # fmt: skip
    """Measure the same with Paddock and its peers, interleaved, and compare.

    Commands may use {python}, {model}, {ctx}, {threads}, {port} and {keys}, a configuration with the API keys that are
    sent, and must listen on 127.0.0.1:{port}. All servers stay up; one at a time is under load.
    """
    # So that a terminated benchmark stops its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    entered = [*entrants(paddock, "paddock", paddock=True), *entrants(peer, "peer")]
    check(entered, model)
    values = {"model": str(model), "ctx": str(ctx), "threads": str(threads)}
    settings = Settings(model_name, temperature, ignore_eos, scale)
    bench = Bench(settings, values, scenario_timeout, start_timeout)
    about = {
        "values": values,
        "rounds": rounds,
        "settings": asdict(settings),
        "servers": [asdict(each) for each in entered],
    }

    def save() -> None:
        if json_path:
            json_path.write_text(
                json.dumps({**about, "notes": bench.notes, "rows": as_json(bench.table.rows)}, indent=1)
            )

    with ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paddock-lab-"))) / "keys.json"
        write_keys(keys)
        values["keys"] = str(keys)
        servers = [_start(stack, bench, entrant) for entrant in entered]
        bench.idle(servers)
        for number in range(rounds):
            bench.round(servers, [name for name in SCENARIOS if name in chosen], number)
            save()
    _print(bench, entered, rounds)
    sys.exit(bench.failed)


def _start(stack: ExitStack, bench: Bench, entrant: Entrant) -> Server:
    say(f"starting {entrant.name}: {entrant.source}")
    try:
        server = stack.enter_context(running(entrant, bench.values, bench.start_seconds, USUAL_KEY))
    except (StartFailed, OSError) as failure:
        raise click.ClickException(str(failure)) from failure
    if not bench.wake("warm-up", server):
        raise click.ClickException(f"{server.name} cannot chat: {bench.notes[-1]}")
    return server


def _print(bench: Bench, entered: list[Entrant], rounds: int) -> None:
    for entrant in entered:
        print(f"{entrant.name}: {entrant.source}")
    print(f"with {bench.values}, {bench.settings}")
    print(f"Medians over the rounds ({rounds}). A ratio above 1 means that Paddock is better than the best peer.\n")
    paddocks = [entrant.name for entrant in entered if entrant.paddock]
    peers = [entrant.name for entrant in entered if not entrant.paddock]
    print(summary(bench.table.rows, paddocks, peers))
    for note in bench.notes:
        print(f"note: {note}")


if __name__ == "__main__":
    main()
