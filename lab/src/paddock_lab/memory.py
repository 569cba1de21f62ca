"""Memory of servers with the same model:  `python -m paddock_lab.memory --server NAME=COMMAND …`

Each server is started, answers one token, and then a long prompt. Pages that processes share are divided between them
(Pss), so the processes of a server can be added. Pages of the model's file are included.
"""

from __future__ import annotations

import asyncio
import random

import click

from paddock_lab.client import stream
from paddock_lab.servers import Server, entrants, running
from paddock_lab.words import user, words

_START_SECONDS = 120


@click.command()
@click.option("--server", "sources", multiple=True, required=True, help="NAME=COMMAND, with {port} and {python}.")
@click.option("--tokens", default=1500, show_default=True, help="Of the long prompt.")
def main(sources: tuple[str, ...], tokens: int) -> None:
    """Measure the memory of servers after their start and after a long prompt, compared with the last one."""
    text = words(tokens, tag=random.Random(0), rest=random.Random(1))
    found: dict[str, list[list[float]]] = {}
    for entrant in entrants(sources, "server"):
        with running(entrant, {}, _START_SECONDS) as server:
            found[server.name] = [_after(server, "Hello"), _after(server, text)]
    reference = list(found.values())[-1]
    for moment, name in enumerate(("one token", f"prompt of about {tokens} tokens")):
        for server_name, sizes in found.items():
            parts, total = " + ".join(f"{size:.0f}" for size in sizes[moment]), sum(sizes[moment])
            print(f"{name:30} {server_name:16} {total:6.0f} MB ({parts})   {total / sum(reference[moment]):.2f}")


def _after(server: Server, text: str) -> list[float]:
    """The memory of each process in MB after an answer of one token."""
    body = {"messages": [user(text)], "max_tokens": 1, "temperature": 0}
    asyncio.run(stream(server.address, body, may_be_empty=True))
    return [process.memory_full_info().pss / 1e6 for process in server.family()]


if __name__ == "__main__":
    main()
