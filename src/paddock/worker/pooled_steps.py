"""Embeddings and scores, step by step: *pack → compute → answer*."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from paddock.engine import PooledEngine
from paddock.errors import ModelLoadFailed
from paddock.scheduling import Job, Packer
from paddock.types import PoolRequest
from paddock.wire.messages import Pooled, Pooling
from paddock.worker.commands import Ended, Event, Failed
from paddock.worker.counters import Counters
from paddock.worker.vectors import EUCLIDEAN, UNCHANGED, pack


@dataclass(slots=True)
class Vectors:
    """The finished part of an answer."""

    request: PoolRequest
    done: list[bytes] = field(default_factory=list)


class PooledSteps:
    """The queue of inputs of one engine. Only the engine thread uses it."""

    def __init__(
        self, engine: PooledEngine, counters: Counters, post: Callable[[Event], None], send: Callable[[Any], None]
    ) -> None:
        self.engine = engine
        self._counters = counters
        self._post = post
        self._send = send
        self._packer = Packer(tokens=engine.n_batch, inputs=engine.n_sequences)
        self._default_norm = UNCHANGED if engine.info.pooling in ("none", "rank") else EUCLIDEAN
        self._step_tokens = 0

    @property
    def is_idle(self) -> bool:
        return self._packer.idle

    @property
    def queued(self) -> int:
        return self._packer.queued

    @property
    def tokens(self) -> int:
        """Tokens that are queued or being computed."""
        return self._step_tokens + self._packer.queued_tokens

    def add(self, job: Job) -> None:
        self._packer.add(job)

    def remove(self, id: int) -> None:
        self._packer.remove(id)

    def step(self, computing: Callable[[], AbstractContextManager[None]]) -> None:
        """Compute the next inputs, if there are any. `computing` wraps the computation."""
        step = self._packer.take()
        if not step:
            return
        inputs = [job.inputs[index] for job, index in step]
        jobs = {job.id: job for job, _ in step}
        self._step_tokens = sum(map(len, inputs))
        # Before the step, so that a client that disconnects during it is charged for it.
        self._send(Pooling([(job.id, job.begun) for job in jobs.values()]))
        begun = time.perf_counter()
        try:
            with computing():
                matrices = self.engine.pool(inputs)
        except ModelLoadFailed as error:  # the context does not fit into memory
            for id in jobs:
                self._packer.remove(id)
                self._post(Failed(id, error))
            return
        finally:
            tokens, self._step_tokens = self._step_tokens, 0
        self._counters.pooled_step(len(inputs), tokens, time.perf_counter() - begun)
        for (job, _), vectors in zip(step, matrices, strict=True):
            self._answer(job, vectors)

    def _answer(self, job: Job, vectors: Any) -> None:
        answer: Vectors = job.answer
        request = answer.request
        normalize = self._default_norm if request.normalize is None else request.normalize
        answer.done.append(pack(vectors, normalize=normalize, dimensions=request.dimensions))
        if len(answer.done) == len(job.inputs):
            width = request.dimensions or self.engine.info.n_embd
            self._post(Ended(job.id, 0))
            self._send(Pooled(job.id, answer.done, width, sum(map(len, job.inputs))))
