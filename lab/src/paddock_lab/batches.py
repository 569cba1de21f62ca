"""A batch against connections that send the same lines in their order:  `python -m paddock_lab.batches`

The lines have a few system prompts in random order. Each server that is given with `--server` gets them over several
connections at once; Paddock also as a batch. Then first tokens of short questions are measured beside a running batch.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from paddock_lab.client import CHAT, post, stream
from paddock_lab.servers import Entrant, Server, entrants, running
from paddock_lab.words import user, words

_SERVE = "{python} -m paddock serve --port {port} --log-disable --data-dir {folder}"
_START_SECONDS = 120
_PAUSE = 0.5
_QUESTION = 24
"""Tokens of a question that is asked beside a batch."""


@click.command()
@click.option("--lines", default=2000, show_default=True)
@click.option("--prompts", default=20, show_default=True, help="Different system prompts.")
@click.option("--system", default=200, show_default=True, help="Tokens of a system prompt.")
@click.option("--question", default=20, show_default=True, help="Tokens that only one line has.")
@click.option("--output", default=16, show_default=True, help="Tokens of an answer.")
@click.option("--connections", default=32, show_default=True)
@click.option("--questions", default=20, show_default=True, help="Asked alone and beside a batch; 0: none.")
@click.option("--warm", is_flag=True, help="Ask once with each system prompt before, as the first lines of many do.")
@click.option("--arguments", default="", help="More arguments of `paddock serve`.")
@click.option("--server", "peers", multiple=True, metavar="NAME=COMMAND", help="Another server, with {port}.")
def main(
    lines: int,
    prompts: int,
    system: int,
    question: int,
    output: int,
    connections: int,
    questions: int,
    warm: bool,
    arguments: str,
    peers: tuple[str, ...],
) -> None:
    """Measure a batch against connections, and questions beside a batch."""
    draw = random.Random(1)
    texts = [words(system, tag=random.Random(number), rest=random.Random(-number)) for number in range(prompts)]
    bodies = [
        {
            "messages": [
                {"role": "system", "content": texts[number % prompts]},
                user(words(question, tag=random.Random(lines + number), rest=random.Random(-lines - number))),
            ],
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
        }
        for number in range(lines)
    ]
    first = [body | {"max_tokens": 1} for body in bodies[:prompts]] if warm else []
    draw.shuffle(bodies)
    with _paddock(arguments) as server:
        asyncio.run(_send(server, first, 1))
        batch = _run_batch(server, bodies)
    print(f"batch: {batch:.1f} s, {lines / batch:.1f} lines/s")
    with _paddock(arguments) as server:
        asyncio.run(_send(server, first, 1))
        _print("Paddock, connections", asyncio.run(_send(server, bodies, connections)), batch, lines)
    for entrant in entrants(peers, "peer") if peers else []:
        with running(entrant, {}, _START_SECONDS) as server:
            asyncio.run(_send(server, first, 1))
            _print(f"{entrant.name}, connections", asyncio.run(_send(server, bodies, connections)), batch, lines)
    if questions:
        with _paddock(arguments) as server:
            asyncio.run(_ask(server, questions))
            alone = asyncio.run(_ask(server, questions))
            with _running_batch(server, bodies):
                beside = asyncio.run(_ask(server, questions))
        ratio = statistics.median(beside) / statistics.median(alone)
        print(f"first tokens alone: {_shown(alone)}; beside a batch: {_shown(beside)} ({ratio:.2f} times)")


@contextmanager
def _paddock(arguments: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="paddock-lab-batches-") as folder:
        entrant = Entrant("Paddock", f"{_SERVE} {arguments}")
        with running(entrant, {"folder": folder}, _START_SECONDS) as server:
            asyncio.run(_ask(server, 1))  # the model is loaded, and the first step is done
            yield server


def _run_batch(server: Server, bodies: list[dict[str, Any]]) -> float:
    with tempfile.TemporaryDirectory(prefix="paddock-lab-lines-") as folder:
        began = time.perf_counter()
        subprocess.run(_command(server, bodies, Path(folder)), check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


@contextmanager
def _running_batch(server: Server, bodies: list[dict[str, Any]]) -> Iterator[None]:
    """A batch that runs meanwhile, and is interrupted at the end."""
    with tempfile.TemporaryDirectory(prefix="paddock-lab-lines-") as folder:
        command = _command(server, bodies, Path(folder))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            time.sleep(5)
            yield
            if process.poll() is not None:
                print("the batch ended before the questions: use more --lines")
            process.terminate()


def _command(server: Server, bodies: list[dict[str, Any]], folder: Path) -> list[str]:
    file = folder / "lines.jsonl"
    with file.open("w", encoding="utf-8") as written:
        for number, body in enumerate(bodies):
            line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            written.write(json.dumps(line) + "\n")
    run = [sys.executable, "-m", "paddock", "batch", "run", str(file), "-o", str(folder / "out.jsonl")]
    return [*run, "--url", server.address.url("").rstrip("/")]


async def _send(server: Server, bodies: list[dict[str, Any]], connections: int) -> float:
    waiting = iter(bodies)

    async def client() -> None:
        for body in waiting:
            await post(server.address, CHAT, body)  # whole replies: events would cost the client time on the same cores

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    return time.perf_counter() - began


async def _ask(server: Server, count: int) -> list[float]:
    """First tokens of short questions, one after another."""
    found = []
    for number in range(count):
        text = words(_QUESTION, tag=random.Random(f"question {number} {time.time()}"), rest=random.Random(number))
        answer = await stream(server.address, {"messages": [user(text)], "max_tokens": 8}, may_be_empty=True)
        found.append(answer.first_token)
        await asyncio.sleep(_PAUSE)
    return found


def _print(name: str, seconds: float, batch: float, lines: int) -> None:
    print(f"{name}: {seconds:.1f} s, {lines / seconds:.1f} lines/s; the batch is {seconds / batch:.2f} times as fast")


def _shown(seconds: list[float]) -> str:
    return f"median {1e3 * statistics.median(seconds):.0f} ms, longest {1e3 * max(seconds):.0f} ms"


if __name__ == "__main__":
    main()
