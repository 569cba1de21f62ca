"""The engine thread of an embedding or reranking model: *receive → pack → compute → answer*."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from paddock.engine import PooledEngine, open_pooled_engine
from paddock.scheduling import Job, Packer
from paddock.types import PoolRequest, SlotState, SlotView
from paddock.wire.messages import Pooled, Pooling, Slots, Stats, View
from paddock.worker.commands import Add, Command, Ended, Remove, Report, Resize
from paddock.worker.engine_thread import EngineThread
from paddock.worker.vectors import EUCLIDEAN, UNCHANGED, pack


@dataclass(slots=True)
class Vectors:
    """The finished part of an answer."""

    request: PoolRequest
    done: list[bytes] = field(default_factory=list)


class PoolingThread(EngineThread):
    """All requests share one slot."""

    engine: PooledEngine
    _packer: Packer

    def view(self) -> View:
        """Call this when the engine is open, from any other thread."""
        with self.state_lock:
            tokens = self._step_tokens + self._packer.queued_tokens
            queued = self._packer.queued + self._inbox.qsize()
            return View([SlotView(0, "prompt" if tokens else "idle", prompt_tokens=tokens)], queued)

    def _open(self) -> None:
        engine = self.engine = open_pooled_engine(self._model_path, self._options, self._report_progress)
        self._packer = Packer(tokens=engine.n_batch, inputs=engine.n_sequences)
        self._default_norm = UNCHANGED if engine.info.pooling in ("none", "rank") else EUCLIDEAN
        self._step_tokens = 0

    @property
    def _is_idle(self) -> bool:
        return self._packer.idle

    def _stats(self, now: float) -> Stats:
        return self.counters.pooled_stats(self._packer.queued, now)

    def _handle(self, command: Command) -> None:
        packer = self._packer
        match command:
            case Add(Job() as job):
                packer.add(job)
            case Remove(id):
                packer.remove(id)
            case Report(id):
                tokens = packer.queued_tokens
                slot = SlotState(0, self.engine.info.n_ctx, is_processing=tokens > 0, n_prompt_tokens=tokens)
                self._send(Slots(id, [slot], packer.queued))
            case Resize():
                pass  # it has no prefix cache
            case _:
                raise AssertionError(f"a pooling model cannot handle {command}")

    def _step(self) -> None:
        step = self._packer.take()
        if not step:
            return
        inputs = [job.inputs[index] for job, index in step]
        self._step_tokens = sum(map(len, inputs))
        # Before the step, so that a client that disconnects during it is charged for it.
        self._send(Pooling([(job.id, job.begun) for job in {job.id: job for job, _ in step}.values()]))
        begun = time.perf_counter()
        with self._computing():
            matrices = self.engine.pool(inputs)
        self.counters.pooled_step(len(inputs), self._step_tokens, time.perf_counter() - begun)
        self._step_tokens = 0
        for (job, _), vectors in zip(step, matrices, strict=True):
            answer: Vectors = job.answer
            request = answer.request
            normalize = self._default_norm if request.normalize is None else request.normalize
            answer.done.append(pack(vectors, normalize=normalize, dimensions=request.dimensions))
            if len(answer.done) == len(job.inputs):
                width = request.dimensions or self.engine.info.n_embd
                self._post(Ended(job.id, 0))
                self._send(Pooled(job.id, answer.done, width, sum(map(len, job.inputs))))
