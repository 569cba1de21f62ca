"""A replica that is a worker of our own, in a seat of its own."""

from __future__ import annotations

import asyncio

from paddock.errors import PaddockError
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.process.worker import WorkerProcess
from paddock.replicas.replica import Health, ReplicaStatus
from paddock.replicas.routing import Load
from paddock.types import GenerateRequest, ModelInfo, SlotState

ENGINE = "llama.cpp"


class LocalReplica:
    """When its worker comes and goes is the lifecycle's business, as of any model."""

    def __init__(self, name: str, seat: str, lifecycle: Lifecycle, *, slots: int) -> None:
        """`slots` are those that it will have."""
        self.name = name
        self.seat = seat
        self._lifecycle = lifecycle
        self._slots = slots
        self._waking: asyncio.Task[None] | None = None

    @property
    def info(self) -> ModelInfo | None:
        worker = self._lifecycle.worker(self.seat)
        return None if worker is None else worker.info

    @property
    def load(self) -> Load:
        status = self._lifecycle.status(self.seat)
        return Load(status.running, status.waiting, status.slots or self._slots)

    @property
    def life(self) -> int:
        return self._lifecycle.status(self.seat).pid or 0

    @property
    def usable(self) -> bool:
        return self._lifecycle.status(self.seat).retry_after == 0

    @property
    def awake(self) -> bool:
        return self._lifecycle.status(self.seat).state == "loaded"

    def beyond(self, request: GenerateRequest) -> PaddockError | None:
        """It knows all there is."""
        return None

    async def enter(self, *, exact: bool) -> WorkerProcess:
        return await self._lifecycle.enter(self.seat)

    def wake(self) -> None:
        if self._waking is None or self._waking.done():
            self._waking = asyncio.get_running_loop().create_task(self._wake())

    async def slots(self) -> list[SlotState]:
        worker = self._lifecycle.worker(self.seat)
        return [] if worker is None else await worker.slots()

    async def leave(self) -> None:
        await self._lifecycle.dismiss(self.seat)

    async def stop(self, grace: float | None) -> None:
        """The lifecycle sees to all workers."""

    def status(self) -> ReplicaStatus:
        seat, info = self._lifecycle.status(self.seat), self.info
        health: Health = "unready" if seat.state == "loading" else "down" if seat.retry_after else "ready"
        return ReplicaStatus(
            self.name,
            "worker",
            health,
            ENGINE,
            info.engine if info is not None else "",
            self.load,
            pid=seat.pid,
            fingerprint=info.fingerprint if info is not None else "",
            failures=seat.failures,
            failure=seat.failure,
            retry_after=seat.retry_after,
        )

    def start(self) -> None:
        """Nothing to look after that the lifecycle would not."""

    async def close(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.gather(self._waking, return_exceptions=True)

    async def _wake(self) -> None:
        try:
            await self._lifecycle.enter(self.seat)
        except PaddockError:
            pass  # which the lifecycle has logged, and which the next one who needs it is told
