"""Those who look on: one look a second feeds them all, and while there are none nobody looks.

Looking wakes nothing and keeps nothing awake: workers show themselves, which does not count as use.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import structlog

from paddock.errors import Unavailable
from paddock.fleet.catalogue.catalogue import Catalogue
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.lifecycle import Lifecycle
from paddock.fleet.lifecycle.model_state import ModelStatus
from paddock.fleet.lifecycle.policy import Bytes
from paddock.fleet.lifecycle.records import ModelRecord
from paddock.fleet.process.worker import WorkerProcess
from paddock.types import ModelInfo, ModelKind, TreeView
from paddock.wire import View

_log = structlog.get_logger(__name__)

_INTERVAL = 1.0
_MOST = 64
_FIRST_SIGHT = 0.5
"""Seconds that the first look waits for workers to show themselves."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a model's file says of how it would be."""

    kind: ModelKind | None
    needs: Bytes
    problem: str | None
    """Why it cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A model as it was at some moment."""

    status: ModelStatus
    prospect: Prospect
    record: ModelRecord | None
    info: ModelInfo | None
    """Of one that is loaded, and so are the next two."""
    view: View | None
    tree: TreeView | None
    """The same object as long as it has not changed."""


@dataclass(frozen=True, slots=True)
class Scene:
    time: float
    """Seconds since 1970."""
    models: list[Sighting]
    memory_limit: Bytes
    """What all of them together may take, on devices where that is known."""


class Onlookers:
    def __init__(
        self, lifecycle: Lifecycle, catalogue: Callable[[], Catalogue], status: Callable[[Model], ModelStatus]
    ) -> None:
        self._lifecycle = lifecycle
        self._catalogue = catalogue
        self._status = status
        self._mailboxes: set[asyncio.Queue[Scene | None]] = set()
        """One for each of them. None: there is no more to be seen."""
        self._looking: asyncio.Task[None] | None = None
        self._newest: Scene | None = None
        self._prospects: dict[str, tuple[Model, Prospect]] = {}
        self._closed = False

    def refuse_if_crowded(self) -> None:
        if len(self._mailboxes) >= _MOST:
            raise Unavailable(f"{_MOST} others look on already", retry_after=10)

    async def scenes(self) -> AsyncGenerator[Scene]:
        """How things are: at once, and then each second. Who is slow misses some. Raises `Unavailable`."""
        self.refuse_if_crowded()
        if self._closed:
            return
        mailbox: asyncio.Queue[Scene | None] = asyncio.Queue(1)
        self._mailboxes.add(mailbox)
        if self._looking is None:
            workers = self._lifecycle.show(on=True)
            self._looking = asyncio.get_running_loop().create_task(self._look(workers))
        elif self._newest is not None:
            mailbox.put_nowait(self._newest)
        try:
            while (scene := await mailbox.get()) is not None:
                yield scene
        finally:
            self._mailboxes.discard(mailbox)
            if not self._mailboxes:
                self._rest()

    def close(self) -> None:
        """Nobody is shown anything any more."""
        self._closed = True
        self._deliver(None)

    def _rest(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._newest = None
        self._lifecycle.show(on=False)

    async def _look(self, workers: list[WorkerProcess]) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_SIGHT):
                    await asyncio.gather(*(worker.shown() for worker in workers))
            while True:
                self._newest = await self._scene()
                self._deliver(self._newest)
                await asyncio.sleep(_INTERVAL)
        except Exception:
            _log.exception("looking on failed")
            self._deliver(None)

    def _deliver(self, scene: Scene | None) -> None:
        for mailbox in self._mailboxes:
            if mailbox.full():
                mailbox.get_nowait()
            mailbox.put_nowait(scene)

    async def _scene(self) -> Scene:
        unknown = [model for model in self._catalogue() if not self._has_learnt(model)]
        if unknown:  # from headers, which may take a while to read
            found = await asyncio.to_thread(lambda: [self._prospect(model) for model in unknown])
            self._prospects |= {model.name: (model, told) for model, told in zip(unknown, found, strict=True)}
        limit = await self._lifecycle.memory_allowed()
        models = [self._sighting(model) for model in self._catalogue() if self._has_learnt(model)]
        return Scene(time.time(), models, limit)

    def _has_learnt(self, model: Model) -> bool:
        return model.name in self._prospects and self._prospects[model.name][0] is model

    def _prospect(self, model: Model) -> Prospect:
        return Prospect(model.kind(), self._lifecycle.estimate(model), model.problem())

    def _sighting(self, model: Model) -> Sighting:
        # Of several that serve it, the first that is loaded shows what it does.
        workers = [self._lifecycle.worker(member.name) for member in model.worker_models().values()]
        worker = next((worker for worker in workers if worker is not None), None)
        return Sighting(
            self._status(model),
            self._prospects[model.name][1],
            self._lifecycle.records.find(model.name),
            worker.info if worker is not None else None,
            worker.view if worker is not None else None,
            worker.tree if worker is not None else None,
        )
