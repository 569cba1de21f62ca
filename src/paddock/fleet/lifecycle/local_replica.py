"""A replica served by a local worker."""

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
    """The lifecycle loads and unloads its worker, as for any model."""

    def __init__(self, name: str, worker_name: str, lifecycle: Lifecycle, *, slots: int) -> None:
        """`slots` is the number of slots that it has once loaded."""
        self.name = name
        self._worker_name = worker_name
        self._lifecycle = lifecycle
        self._slots = slots
        self._waking: asyncio.Task[None] | None = None

    @property
    def info(self) -> ModelInfo | None:
        worker = self._lifecycle.worker(self._worker_name)
        return None if worker is None else worker.info

    @property
    def load(self) -> Load:
        status = self._lifecycle.status(self._worker_name)
        return Load(status.running, status.waiting, status.slots or self._slots)

    @property
    def epoch(self) -> int:
        return self._lifecycle.status(self._worker_name).pid or 0

    @property
    def usable(self) -> bool:
        return self._lifecycle.status(self._worker_name).retry_after == 0

    @property
    def is_doubtful(self) -> bool:
        """What is known about a worker is true."""
        return False

    @property
    def is_loaded(self) -> bool:
        return self._lifecycle.status(self._worker_name).state == "loaded"

    def unsupported(self, request: GenerateRequest) -> PaddockError | None:
        """It supports every request."""
        return None

    async def acquire(self, *, exact: bool) -> WorkerProcess:
        return await self._lifecycle.ensure_loaded(self._worker_name)

    def start_load(self) -> None:
        if self._waking is None or self._waking.done():
            self._waking = asyncio.get_running_loop().create_task(self._wake())

    async def slots(self) -> list[SlotState]:
        worker = self._lifecycle.worker(self._worker_name)
        return [] if worker is None else await worker.slots()

    async def drain(self) -> None:
        await self._lifecycle.unload(self._worker_name)

    async def stop(self, grace: float | None) -> None:
        """The lifecycle stops all workers."""

    def status(self) -> ReplicaStatus:
        status, info = self._lifecycle.status(self._worker_name), self.info
        health: Health = "unready" if status.state == "loading" else "down" if status.retry_after else "ready"
        return ReplicaStatus(
            self.name,
            "worker",
            health,
            ENGINE,
            info.engine if info is not None else "",
            self.load,
            pid=status.pid,
            fingerprint=info.fingerprint if info is not None else "",
            failures=status.failures,
            failure=status.failure,
            retry_after=status.retry_after,
        )

    def start(self) -> None:
        """The lifecycle watches it."""

    async def close(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.gather(self._waking, return_exceptions=True)

    async def _wake(self) -> None:
        try:
            await self._lifecycle.ensure_loaded(self._worker_name)
        except PaddockError:
            pass  # logged by the lifecycle; the next request gets the error
