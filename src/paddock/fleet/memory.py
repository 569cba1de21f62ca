"""How much memory there is, and who holds it."""

from __future__ import annotations

from paddock.fleet.policy import Bytes


class Machine:
    """Implements `Memory` for the machine that this process runs on."""

    def available(self) -> Bytes:
        return {}

    def taken(self, pid: int) -> Bytes:
        return {}
