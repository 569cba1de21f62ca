"""The attackers, in a separate process, so that their work does not delay the clients that are measured."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

from paddock_lab.abuse import connection_attacks, request_attacks
from paddock_lab.abuse.attack import Attack, Peer
from paddock_lab.client import Address
from paddock_lab.stress import Outcomes

_END_SECONDS = 30

FAMILIES: Final[dict[str, tuple[Attack, ...]]] = {
    "answers": request_attacks.ANSWERS,
    "bodies": connection_attacks.BODIES,
    "connections": connection_attacks.CONNECTIONS,
    "edge": connection_attacks.EDGE,
    "samplers": request_attacks.SAMPLERS,
    "schemas": request_attacks.SCHEMAS,
    "texts": request_attacks.TEXTS,
}


@contextmanager
def storm(address: Address, families: Sequence[str], connections: int, outcomes: Outcomes) -> Iterator[None]:
    """Attack while the block runs, then add the results to `outcomes`. `address` has the attackers' key."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_attack, args=(address, families, connections, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()  # it has started
        yield
        ours.send(None)
        if not ours.poll(_END_SECONDS):
            outcomes.violate("the attackers did not stop in time")
            return
        seen: Outcomes = ours.recv()
        outcomes.counts.update(seen.counts)
        outcomes.violations += seen.violations
    except EOFError:
        outcomes.violate("the attackers' process ended early")
    finally:
        process.terminate()
        process.join()


def _attack(address: Address, families: Sequence[str], connections: int, control: Connection) -> None:
    attacks = [attack for name in families for attack in FAMILIES[name]]
    if "connections" in families:
        attacks.append(connection_attacks.held(connections))
    control.send(asyncio.run(_run(address, attacks, control)))


async def _run(address: Address, attacks: Sequence[Attack], control: Connection) -> Outcomes:
    outcomes = Outcomes()
    tasks = [
        asyncio.ensure_future(_repeat(address, attack, outcomes)) for attack in attacks for _ in range(attack.copies)
    ]
    control.send(None)
    await asyncio.to_thread(control.recv)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            outcomes.violate(f"an attack raised an exception: {outcome!r}")
    return outcomes


async def _repeat(address: Address, attack: Attack, outcomes: Outcomes) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            outcomes.counts[f"{attack.name}: no connection"] += 1
            await asyncio.sleep(attack.pause)
            continue
        try:
            outcome = await attack.act(Peer(address, reader, writer))
        except OSError:
            outcome = "closed"
        finally:
            writer.transport.abort()
        outcomes.counts[f"{attack.name}: {outcome}"] += 1
        if outcome not in attack.expected:
            outcomes.violate(f"{attack.name} ended with {outcome}")
        await asyncio.sleep(attack.pause)
