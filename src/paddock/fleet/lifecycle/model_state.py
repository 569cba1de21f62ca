"""One model's place: whether it is there, who waits for it, and what is known of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paddock.errors import PaddockError
from paddock.failures import Failures
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.policy import Bytes, Phase, Standing
from paddock.fleet.process.worker import WorkerProcess
from paddock.replicas.replica import ReplicaStatus
from paddock.tally import Levels
from paddock.types import SandboxState

State = Literal["unloaded", "loading", "loaded", "unloading"]
STATES: dict[Phase, State] = {"out": "unloaded", "loading": "loading", "in": "loaded", "leaving": "unloading"}


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What a look at a model shows. Looking changes nothing."""

    model: Model
    state: State
    running: int = 0
    waiting: int = 0
    slots: int = 0
    pid: int | None = None
    progress: float = 0.0
    """Of its loading."""
    needs: Bytes = field(default_factory=dict)
    """Prefixes in host memory included."""
    cache_share: int = 0
    """Bytes of host memory that prefixes may take, of those that all models share."""
    levels: Levels = field(default_factory=Levels)
    loaded_for: float = 0.0
    """Seconds."""
    idle_for: float = 0.0
    failure: str = ""
    """Why it last failed, unless it has worked since."""
    failures: int = 0
    retry_after: float = 0.0
    """Seconds for which it is left alone after them."""
    sandbox: SandboxState | None = None
    """Of its worker, while it is loaded."""
    replicas: tuple[ReplicaStatus, ...] = ()
    """Those that serve it together, where there are several."""

    @property
    def failed(self) -> bool:
        """It is not there because it failed."""
        return self.state == "unloaded" and bool(self.failure)


def together(model: Model, members: Sequence[ModelStatus], replicas: Sequence[ReplicaStatus]) -> ModelStatus:
    """A model that several serve, as one: `members` are those of them that are workers of ours."""
    elsewhere = [replica for replica in replicas if replica.kind != "worker"]
    loaded = [member for member in members if member.state == "loaded"]
    on_its_way: State = next((member.state for member in members if member.state != "unloaded"), "unloaded")
    ready = [replica for replica in elsewhere if replica.health == "ready"]
    failing = next((replica for replica in replicas if replica.failure), None)
    return ModelStatus(
        model,
        "loaded" if loaded or ready else on_its_way,
        running=sum(replica.load.running for replica in replicas),
        waiting=sum(member.waiting for member in members) + sum(replica.load.waiting for replica in elsewhere),
        slots=sum(member.slots for member in members) + sum(replica.load.slots for replica in ready),
        progress=max((member.progress for member in members), default=0.0),
        sandbox=_weakest(loaded),
        needs=_sum(member.needs for member in members),
        cache_share=sum(member.cache_share for member in members),
        loaded_for=max((member.loaded_for for member in members), default=0.0),
        idle_for=min((member.idle_for for member in loaded), default=0.0),
        failure=failing.failure if failing is not None else "",
        failures=max((replica.failures for replica in replicas), default=0),
        retry_after=min((replica.retry_after for replica in replicas), default=0.0),
        replicas=tuple(replicas),
    )


def _weakest(loaded: Sequence[ModelStatus]) -> SandboxState | None:
    """Of several workers the one that is confined least."""
    states = [member.sandbox for member in loaded if member.sandbox is not None]
    return min(states, key=lambda state: len(state.active), default=None)


def _sum(sizes: Iterable[Bytes]) -> Bytes:
    total: Counter[str] = Counter()
    for size in sizes:
        total.update(size)
    return dict(total)


class Seat:
    """Written by the lifecycle alone."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.next: Model | None = model
        """What it is to be from its next load on; None: it is not to be served any more."""
        self.phase: Phase = "out"
        self.worker: WorkerProcess | None = None
        self.task: asyncio.Task[None] | None = None
        """What brings it in or sees it off."""
        self.waiting: dict[asyncio.Future[WorkerProcess], float] = {}
        """Who waits for it, since when. One that was let in is here until it has come in."""
        self.dismissed = False
        """It leaves whoever wants it."""
        self.failures = Failures()
        self.needs: dict[str, int] | None = None
        self.granted: Bytes = {}
        """What its worker was given of memory that it only takes as far as there is room."""
        self.cache_limit = 0
        """The most host memory that its prefix cache may take by its settings; 0 where it has none."""
        self.cache_share = 0
        """What its worker was told it may take."""
        self.last_used = 0.0
        self.loaded_at = 0.0
        self.stays_until = 0.0

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or (self.worker is not None and self.worker.busy)

    @property
    def takes(self) -> dict[str, int]:
        return {**(self.needs or {}), **self.granted}

    @property
    def stored(self) -> int:
        """Bytes of prefixes in its worker's host memory, as it last said."""
        levels = self.worker.levels if self.worker is not None else None
        return levels.stored_bytes if levels is not None else 0

    def standing(self) -> Standing:
        return Standing(
            self.model.name,
            self.takes,
            self.phase,
            busy=self.busy,
            stays_until=self.stays_until,
            last_used=self.last_used,
            idle_timeout=self.model.idle_timeout,
            pinned=self.model.pinned,
            waited_for_since=self.waited_for_since,
        )

    @property
    def waited_for_since(self) -> float | None:
        """Since when somebody waits who has been told nothing yet."""
        return min((since for waiter, since in self.waiting.items() if not waiter.done()), default=None)

    def status(self, now: float) -> ModelStatus:
        worker, there = self.worker, self.phase in ("in", "leaving")
        return ModelStatus(
            self.model,
            STATES[self.phase],
            running=worker.running if worker is not None else 0,
            waiting=len(self.waiting),
            slots=worker.info.n_slots if worker is not None and worker.info is not None else 0,
            pid=worker.pid if worker is not None else None,
            sandbox=worker.sandbox if worker is not None and there else None,
            progress=worker.progress if worker is not None else 0.0,
            needs=_sum([self.takes, {"host": self.stored}]) if self.stored else self.takes,
            cache_share=self.cache_share,
            levels=(worker.levels if worker is not None else None) or Levels(),
            loaded_for=now - self.loaded_at if there else 0.0,
            idle_for=now - self.last_used if there and not self.busy else 0.0,
            failure=self.failures.reason,
            failures=self.failures.count,
            retry_after=self.failures.pause(now),
        )

    def refuse_waiting(self, error: PaddockError) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(error)
