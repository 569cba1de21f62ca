"""The state of one model: its phase, its worker and the requests that wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paddock.errors import PaddockError
from paddock.failures import Failures
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.policy import Bytes, Candidate, Phase
from paddock.fleet.process.worker import WorkerProcess
from paddock.replicas.replica import ReplicaStatus
from paddock.tally import Levels
from paddock.types import EngineOptions, SandboxState


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model's status, read-only."""

    model: Model
    state: Phase
    running: int = 0
    waiting: int = 0
    slots: int = 0
    pid: int | None = None
    progress: float = 0.0
    """Of its load, 0 to 1."""
    needs: Bytes = field(default_factory=dict)
    """The memory that it takes, including prefixes in host memory."""
    cache_share: int = 0
    """Its share of the host memory for prefixes, in bytes."""
    levels: Levels = field(default_factory=Levels)
    loaded_for: float = 0.0
    """Seconds."""
    idle_for: float = 0.0
    idle_timeout: float = 0.0
    """It is unloaded after so many idle seconds; 0: never."""
    failure: str = ""
    """Its last failure; empty after a success."""
    failures: int = 0
    retry_after: float = 0.0
    """Seconds until it may be loaded again."""
    sandbox: SandboxState | None = None
    """The sandbox of its worker, while it is loaded."""
    replicas: tuple[ReplicaStatus, ...] = ()
    """Its replicas; empty if one worker serves it."""

    @property
    def is_failed(self) -> bool:
        """Whether it is unloaded because of a failure."""
        return self.state == "unloaded" and bool(self.failure)


def combined_status(model: Model, workers: Sequence[ModelStatus], replicas: Sequence[ReplicaStatus]) -> ModelStatus:
    """The status of a model with replicas. `workers` are the local ones."""
    others = [replica for replica in replicas if replica.kind != "worker"]
    loaded = [worker for worker in workers if worker.state == "loaded"]
    in_transition: Phase = next((worker.state for worker in workers if worker.state != "unloaded"), "unloaded")
    ready = [replica for replica in others if replica.health == "ready"]
    failing = next((replica for replica in replicas if replica.failure), None)
    return ModelStatus(
        model,
        "loaded" if loaded or ready else in_transition,
        running=sum(replica.load.running for replica in replicas),
        waiting=sum(worker.waiting for worker in workers) + sum(replica.load.waiting for replica in others),
        slots=sum(worker.slots for worker in workers) + sum(replica.load.slots for replica in ready),
        progress=max((worker.progress for worker in workers), default=0.0),
        sandbox=_weakest_sandbox(loaded),
        needs=_sum(worker.needs for worker in workers),
        cache_share=sum(worker.cache_share for worker in workers),
        loaded_for=max((worker.loaded_for for worker in workers), default=0.0),
        idle_for=min((worker.idle_for for worker in loaded), default=0.0),
        idle_timeout=max((worker.idle_timeout for worker in workers), default=0.0),
        failure=failing.failure if failing is not None else "",
        failures=max((replica.failures for replica in replicas), default=0),
        retry_after=min((replica.retry_after for replica in replicas), default=0.0),
        replicas=tuple(replicas),
    )


def _weakest_sandbox(loaded: Sequence[ModelStatus]) -> SandboxState | None:
    """The sandbox with the fewest protections."""
    states = [worker.sandbox for worker in loaded if worker.sandbox is not None]
    return min(states, key=lambda state: len(state.active), default=None)


def _sum(sizes: Iterable[Bytes]) -> Bytes:
    total: Counter[str] = Counter()
    for size in sizes:
        total.update(size)
    return dict(total)


class ModelState:
    """Only the lifecycle writes it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.next: Model | None = model
        """The model to load next time; None if it is no longer served."""
        self.phase: Phase = "unloaded"
        self.worker: WorkerProcess | None = None
        self.task: asyncio.Task[None] | None = None
        """The running load or unload."""
        self.waiting: dict[asyncio.Future[WorkerProcess], float] = {}
        """The requests that wait for its load, and since when."""
        self.unload_requested = False
        """It is unloaded even if requests wait for it."""
        self.failures = Failures()
        self.needs: dict[str, int] | None = None
        self.granted: Bytes = {}
        """Memory of what was chosen for it: its layers on the GPU, and its context."""
        self.embeddings: Bytes = {}
        """Memory of the context that computes embeddings beside answers, once one was requested."""
        self.options: EngineOptions | None = None
        """The options of its last load."""
        self.cache_limit = 0
        """The most host memory for its prefix cache by its settings; 0 without a cache."""
        self.cache_share = 0
        """The limit that its worker has."""
        self.last_used = 0.0
        self.loaded_at = 0.0
        self.resident_until = 0.0
        self.stay: float | None = None
        """How long it stays loaded while idle, as a request asked; 0: for ever. None: as its settings say."""

    @property
    def idle_timeout(self) -> float:
        return self.model.settings.idle_timeout if self.stay is None else self.stay

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or (self.worker is not None and self.worker.requests.busy)

    @property
    def takes(self) -> dict[str, int]:
        needs, granted = self.needs or {}, self.granted
        chosen = {device: max(needs.get(device, 0), granted.get(device, 0)) for device in {**needs, **granted}}
        return dict(_sum([chosen, self.embeddings]))

    @property
    def stored(self) -> int:
        """Bytes of prefixes in its worker's host memory, as last reported."""
        levels = self.worker.levels if self.worker is not None else None
        return levels.stored_bytes if levels is not None else 0

    def candidate(self) -> Candidate:
        return Candidate(
            self.model.name,
            self.takes,
            self.phase,
            busy=self.busy,
            resident_until=self.resident_until,
            last_used=self.last_used,
            idle_timeout=self.idle_timeout,
            pinned=self.model.settings.pinned,
            waiting_since=self.waiting_since,
        )

    @property
    def waiting_since(self) -> float | None:
        """Arrival of the oldest waiting request, or None."""
        return min((since for waiter, since in self.waiting.items() if not waiter.done()), default=None)

    def status(self, now: float) -> ModelStatus:
        worker, is_loaded = self.worker, self.phase in ("loaded", "unloading")
        return ModelStatus(
            self.model,
            self.phase,
            running=worker.requests.running if worker is not None else 0,
            waiting=len(self.waiting),
            slots=worker.info.n_slots if worker is not None and worker.info is not None else 0,
            pid=worker.pid if worker is not None else None,
            sandbox=worker.sandbox if worker is not None and is_loaded else None,
            progress=worker.progress if worker is not None else 0.0,
            needs=_sum([self.takes, {"host": self.stored}]) if self.stored else self.takes,
            cache_share=self.cache_share,
            levels=(worker.levels if worker is not None else None) or Levels(),
            loaded_for=now - self.loaded_at if is_loaded else 0.0,
            idle_for=now - self.last_used if is_loaded and not self.busy else 0.0,
            idle_timeout=self.idle_timeout,
            failure=self.failures.reason,
            failures=self.failures.count,
            retry_after=self.failures.pause(now),
        )

    @property
    def loaded_worker(self) -> WorkerProcess | None:
        """Its worker, if it takes requests now."""
        return self.live_worker if self.phase == "loaded" else None

    @property
    def live_worker(self) -> WorkerProcess | None:
        """Its worker, if its model is loaded, also while it unloads."""
        is_loaded = self.phase in ("loaded", "unloading")
        return self.worker if is_loaded and self.worker is not None and self.worker.alive else None

    def clear(self) -> None:
        """Its worker has ended."""
        self.phase, self.worker, self.task, self.unload_requested = "unloaded", None, None, False
        self.granted, self.embeddings, self.cache_share, self.stay = {}, {}, 0, None

    def refuse_waiting(self, error: PaddockError) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(error)
