"""CPU time during a measurement: the servers should use it, the client and other processes should not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paddock_lab.servers import Server, machine_processor_seconds, processor_seconds

_BUSY_CLIENT = 0.15
_BUSY_OTHERS = 0.2


@dataclass(frozen=True)
class Clock:
    """CPU seconds so far."""

    wall: float
    client: float
    servers: float
    machine: float

    @classmethod
    def read(cls, servers: Sequence[Server]) -> Clock:
        used = sum(processor_seconds(server) for server in servers)
        return cls(time.perf_counter(), time.process_time(), used, machine_processor_seconds())

    def shares_since(self, begun: Clock) -> tuple[float, float]:
        """Parts of a core that the client used, and that neither the client nor the servers used."""
        client, servers = self.client - begun.client, self.servers - begun.servers
        others = self.machine - begun.machine - client - servers
        passed = self.wall - begun.wall
        return client / passed, max(0.0, others / passed)


def doubts(client: float, others: float) -> list[str]:
    """Reasons to distrust a measurement with these shares of a core."""
    found = []
    if client > _BUSY_CLIENT:
        found.append(f"the client used {client:.0%} of a core")
    if others > _BUSY_OTHERS:
        found.append(f"other processes used {others:.0%} of a core")
    return found
