"""The engine thread of a model that makes vectors: *receive → pack → compute → answer*."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from queue import Empty

from paddock.engine import PooledEngine, open_pooled_engine
from paddock.scheduling import Job, Packer
from paddock.types import EngineOptions, PoolRequest, SlotState, SlotView
from paddock.wire import Pooled, Pooling, Slots, Stats, View
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.engine_thread import Command, Ended, Event, Remove, Report, Resize
from paddock.worker.native_thread import NativeThread
from paddock.worker.vectors import EUCLIDEAN, pack


@dataclass(slots=True, frozen=True)
class AddJob:
    job: Job


@dataclass(slots=True, frozen=True)
class PooledOpened:
    engine: PooledEngine


@dataclass(slots=True)
class Vectors:
    """What a request has of its answer so far."""

    request: PoolRequest
    done: list[bytes] = field(default_factory=list)


class PooledThread(NativeThread[Command | AddJob]):
    """Makes vectors. Answers go out through `send`, which never blocks either."""

    def __init__(
        self,
        model_path: str,
        options: EngineOptions,
        cpu_lock: CpuLock,
        post: Callable[[Event | PooledOpened], None],
        send: Callable[[Pooling | Pooled | Slots | Stats], None],
        confine: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(post, confine)
        self._model_path = model_path
        self._options = options
        self._cpu_lock = cpu_lock
        self._send = send
        self._packer: Packer | None = None
        self._in_hand = 0
        """Tokens of the step that is being computed."""

    def look(self) -> View:
        """How things are, for the other threads, once it is open. There is one place, which all share."""
        with self.deciding:
            assert self._packer is not None, "it is open"
            tokens = self._in_hand + self._packer.queued_tokens
            waiting = self._packer.queued + self._inbox.qsize()
            return View([SlotView(0, "prompt" if tokens else "idle", prompt_tokens=tokens)], waiting)

    def _serve(self) -> None:
        engine = open_pooled_engine(self._model_path, self._options, self._report_progress)
        self._is_open = True
        self._post(PooledOpened(engine))
        self._run(engine)

    def _run(self, engine: PooledEngine) -> None:
        packer = self._packer = Packer(tokens=engine.n_batch, inputs=engine.n_sequences)
        usual = -1 if engine.info.pooling in ("none", "rank") else EUCLIDEAN
        while True:
            self._receive(engine, packer)
            step = packer.take()
            if not step:
                continue
            inputs = [job.inputs[index] for job, index in step]
            self._in_hand = sum(map(len, inputs))
            # Before it is computed: who leaves in the middle of a step is charged for it.
            self._send(Pooling([(job.id, job.begun) for job in {job.id: job for job, _ in step}.values()]))
            begun = time.perf_counter()
            with self._in_turn(self._cpu_lock.hold() if engine.takes_turns else nullcontext()):
                matrices = engine.pool(inputs)
            now = time.perf_counter()
            self.counters.pooled_step(len(inputs), self._in_hand, now - begun)
            self._in_hand = 0
            for (job, _), vectors in zip(step, matrices, strict=True):
                answer: Vectors = job.answer
                request = answer.request
                normalize = usual if request.normalize is None else request.normalize
                answer.done.append(pack(vectors, normalize=normalize, dimensions=request.dimensions))
                if len(answer.done) == len(job.inputs):
                    width = request.dimensions or engine.info.n_embd
                    self._post(Ended(job.id, 0))
                    self._send(Pooled(job.id, answer.done, width, sum(map(len, job.inputs))))
            if self.counters.due(now):
                self._send(self.counters.pooled_stats(packer.queued, now))

    def _receive(self, engine: PooledEngine, packer: Packer) -> None:
        """Take every waiting command; with nothing to compute, sleep until one comes."""
        if packer.idle and self.counters.due(now := time.perf_counter(), idle=True):
            self._send(self.counters.pooled_stats(0, now))
        try:
            command = self._next(wait=packer.idle)
            while True:
                match command:
                    case AddJob(job):
                        packer.add(job)
                    case Remove(id):
                        packer.remove(id)
                    case Report(id):
                        # One place that all share: there is nothing to be had of it between two steps but the queue.
                        waiting = packer.queued_tokens
                        slot = SlotState(0, engine.info.n_ctx, is_processing=waiting > 0, n_prompt_tokens=waiting)
                        self._send(Slots(id, [slot], packer.queued))
                    case Resize():
                        pass  # it keeps nothing
                    case _:
                        raise AssertionError(f"a model that generates nothing was told {command}")
                command = self._inbox.get_nowait()
        except Empty:
            return
