"""The live view's data: one task takes a snapshot each second for all subscribers, and none runs without them.

Watching loads no model and does not reset its idle timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

import structlog

from paddock.errors import Unavailable
from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.broadcast import Broadcast
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.lifecycle.model_state import ModelStatus
from paddock.fleet.lifecycle.policy import Bytes
from paddock.fleet.lifecycle.records import ModelRecord
from paddock.fleet.lifecycle.replica_snapshot import ReplicaSnapshot, renumbered, replica_snapshot
from paddock.fleet.process.worker import WorkerProcess
from paddock.replicas.prefix_spans import PrefixSpan
from paddock.replicas.replica import Replicas
from paddock.tally import Tally
from paddock.types import ModelInfo, ModelKind, ReportView, SlotView, TreeView

_log = structlog.get_logger(__name__)

_INTERVAL = 1.0
_MOST_SUBSCRIBERS = 64
_FIRST_VIEW_WAIT = 0.5
"""Seconds that the first snapshot waits for the workers' views."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts from a model's header."""

    kind: ModelKind | None
    needs: Bytes
    problem: str | None
    """Why it cannot be loaded."""


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """A model at one moment. `info` and `tree` are None while it is not loaded."""

    status: ModelStatus
    facts: FileFacts
    record: ModelRecord
    tally: Tally
    """Of all its workers."""
    info: ModelInfo | None
    slots: list[SlotView]
    """Of all its workers, those of the tree's worker first."""
    queued: int
    """Requests that wait in its workers."""
    replicas: list[ReplicaSnapshot]
    """Empty if one worker serves it."""
    prefixes: list[PrefixSpan]
    """Which replicas likely have the last prompts cached."""
    tree: TreeView | None
    """The same object as long as it has not changed."""
    reports: Sequence[ReportView]
    """Likewise."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    time: float
    """Unix time."""
    models: list[ModelSnapshot]
    memory_limit: Bytes
    """The memory that all models together may take, on devices where that is known."""


class LiveFeed:
    def __init__(
        self,
        lifecycle: Lifecycle,
        catalogue: Callable[[], Catalogue],
        status: Callable[[Model], ModelStatus],
        replicas: Callable[[Model], Replicas | None],
    ) -> None:
        self._lifecycle = lifecycle
        self._catalogue = catalogue
        self._status = status
        self._replicas = replicas
        self._subscribers = Broadcast[FleetSnapshot](1)
        self._task: asyncio.Task[None] | None = None
        self._newest: FleetSnapshot | None = None
        self._facts: dict[str, tuple[Model, FileFacts]] = {}
        self._closed = False

    def refuse_if_full(self) -> None:
        if len(self._subscribers) >= _MOST_SUBSCRIBERS:
            raise Unavailable(f"the live view already has {_MOST_SUBSCRIBERS} subscribers", retry_after=10)

    async def snapshots(self) -> AsyncGenerator[FleetSnapshot]:
        """A snapshot at once, then one each second. A slow subscriber misses some. Raises `Unavailable`."""
        self.refuse_if_full()
        if self._closed:
            return
        if self._task is None:
            workers = self._lifecycle.watch_workers(on=True)
            self._task = asyncio.get_running_loop().create_task(self._run(workers))
        newest = [self._newest] if self._newest is not None else []
        try:
            async with aclosing(self._subscribers.subscribe(newest)) as snapshots:
                async for snapshot in snapshots:
                    yield snapshot
        finally:
            if not self._subscribers:
                self._stop()

    def close(self) -> None:
        """End all subscriptions and accept no new ones."""
        self._closed = True
        self._subscribers.close()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._newest = None
        self._lifecycle.watch_workers(on=False)

    async def _run(self, workers: list[WorkerProcess]) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_VIEW_WAIT):
                    await asyncio.gather(*(worker.wait_first_view() for worker in workers))
            while True:
                self._newest = await self._snapshot()
                self._subscribers.publish(self._newest)
                await asyncio.sleep(_INTERVAL)
        except Exception:
            _log.exception("the live feed failed")
            self._subscribers.close()

    async def _snapshot(self) -> FleetSnapshot:
        unknown = [model for model in self._catalogue() if not self._has_facts(model)]
        if unknown:  # reads headers, which may be slow
            found = await asyncio.to_thread(lambda: [self._read_facts(model) for model in unknown])
            self._facts |= {model.name: (model, facts) for model, facts in zip(unknown, found, strict=True)}
        limit = await self._lifecycle.memory_allowed()
        models = [self._model(model) for model in self._catalogue() if self._has_facts(model)]
        return FleetSnapshot(time.time(), models, limit)

    def _has_facts(self, model: Model) -> bool:
        return model.name in self._facts and self._facts[model.name][0] is model

    def _read_facts(self, model: Model) -> FileFacts:
        return FileFacts(model.kind(), self._lifecycle.estimate(model), model.problem())

    def _model(self, model: Model) -> ModelSnapshot:
        # With several replicas, the first loaded one has the tree and the first slots.
        names = {replica: one.name for replica, one in model.worker_models().items()}
        workers = [worker for name in names.values() if (worker := self._lifecycle.worker(name)) is not None]
        views = [worker.view for worker in workers if worker.view is not None]
        first = workers[0] if workers else None
        status, replicas, find = self._status(model), self._replicas(model), self._lifecycle.records.find
        tally = Tally()
        for name in names.values():
            if (record := find(name)) is not None:
                tally.add(record.tally)
        info = first.info if first is not None else replicas.info if replicas is not None else None
        return ModelSnapshot(
            status,
            self._facts[model.name][1],
            find(model.name) or ModelRecord(),
            tally,
            info,
            renumbered(view.slots for view in views),
            sum(view.queued for view in views) if views else status.levels.queued,
            [
                replica_snapshot(one, self._lifecycle.status(names[one.name]), find(names[one.name]))
                if one.name in names
                else replica_snapshot(one)
                for one in status.replicas
            ],
            replicas.prefixes() if replicas is not None else [],
            first.tree if first is not None else None,
            first.reports if first is not None else (),
        )
