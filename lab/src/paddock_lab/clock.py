"""Who uses the processor during a measurement: the servers should, the client and everybody else should not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paddock_lab.servers import Server, machine_processor_seconds, processor_seconds

_BUSY_CLIENT = 0.15
_BUSY_OTHERS = 0.2


@dataclass(frozen=True)
class Clock:
    """Processor time so far, of those concerned."""

    wall: float
    client: float
    servers: float
    machine: float

    @classmethod
    def read(cls, servers: Sequence[Server]) -> Clock:
        used = sum(processor_seconds(server) for server in servers)
        return cls(time.perf_counter(), time.process_time(), used, machine_processor_seconds())

    def shares_since(self, begun: Clock) -> tuple[float, float]:
        """Of a core: what the client took, and what neither it nor the servers took."""
        client, servers = self.client - begun.client, self.servers - begun.servers
        others = self.machine - begun.machine - client - servers
        passed = self.wall - begun.wall
        return client / passed, max(0.0, others / passed)


def doubts(client: float, others: float) -> list[str]:
    """What such shares of a core say against a measurement."""
    found = []
    if client > _BUSY_CLIENT:
        found.append(f"the client took {client:.0%} of a core")
    if others > _BUSY_OTHERS:
        found.append(f"other work on this machine took {others:.0%} of a core")
    return found
