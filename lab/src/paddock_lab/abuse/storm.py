"""The attackers, in a process of their own, so that their work does not delay the clients that are measured."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from paddock_lab.abuse.attack import Attack, Target
from paddock_lab.abuse.connections import held
from paddock_lab.abuse.families import FAMILIES

_END_SECONDS = 30


@dataclass
class Outcomes:
    counts: Counter[str] = field(default_factory=Counter)
    """By attack and outcome."""
    violations: list[str] = field(default_factory=list)


@contextmanager
def storm(target: Target, families: Sequence[str], connections: int, outcomes: Outcomes) -> Iterator[None]:
    """Attack as long as the block runs, then add to `outcomes` what happened."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_attack, args=(target, families, connections, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()  # it has started
        yield
        ours.send(None)
        if not ours.poll(_END_SECONDS):
            outcomes.violations.append("the attackers could not be stopped")
            return
        seen: Outcomes = ours.recv()
        outcomes.counts.update(seen.counts)
        outcomes.violations += seen.violations
    except EOFError:
        outcomes.violations.append("the attackers' process ended early")
    finally:
        process.terminate()
        process.join()


def _attack(target: Target, families: Sequence[str], connections: int, control: Connection) -> None:
    attacks = [attack for name in families for attack in FAMILIES[name]]
    if "connections" in families:
        attacks.append(held(connections))
    control.send(asyncio.run(_run(target, attacks, control)))


async def _run(target: Target, attacks: Sequence[Attack], control: Connection) -> Outcomes:
    outcomes = Outcomes()
    tasks = [
        asyncio.ensure_future(_repeat(target, attack, outcomes)) for attack in attacks for _ in range(attack.copies)
    ]
    control.send(None)
    await asyncio.to_thread(control.recv)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            outcomes.violations.append(f"an attack failed by itself: {outcome!r}")
    return outcomes


async def _repeat(target: Target, attack: Attack, outcomes: Outcomes) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(target.address.host, target.address.port)
        except OSError:
            outcomes.counts[f"{attack.name}: no connection"] += 1
            await asyncio.sleep(attack.pause)
            continue
        try:
            outcome = await attack.act(target, reader, writer)
        except OSError:
            outcome = "closed"
        finally:
            writer.transport.abort()
        outcomes.counts[f"{attack.name}: {outcome}"] += 1
        if outcome not in attack.expected:
            outcomes.violations.append(f"{attack.name} was answered with {outcome}")
        await asyncio.sleep(attack.pause)
