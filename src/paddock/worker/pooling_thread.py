"""The engine thread of an embedding or reranking model: *receive → step*."""

from __future__ import annotations

from paddock.engine import PooledEngine, open_pooled_engine
from paddock.scheduling import Job
from paddock.types import SlotState, SlotView
from paddock.wire.messages import CacheContents, Slots, Stats, View
from paddock.worker.commands import Add, ClearCache, Command, Remove, Report, ReportCache, Resize
from paddock.worker.engine_thread import EngineThread
from paddock.worker.pooled_steps import PooledSteps


class PoolingThread(EngineThread):
    """All requests share one slot."""

    engine: PooledEngine
    _steps: PooledSteps

    def view(self) -> View:
        """Call this when the engine is open, from any other thread."""
        with self.state_lock:
            tokens, queued = self._steps.tokens, self._steps.queued + self._inbox.qsize()
            return View([SlotView(0, "prompt" if tokens else "idle", prompt_tokens=tokens)], queued)

    def _open(self) -> None:
        self.engine = open_pooled_engine(self._model_path, self._options, self._report_progress)
        self._steps = PooledSteps(self.engine, self.counters, self._post, self._send)

    @property
    def _is_idle(self) -> bool:
        return self._steps.is_idle

    def _stats(self, now: float) -> Stats:
        return self.counters.pooled_stats(self._steps.queued, now)

    def _handle(self, command: Command) -> None:
        steps = self._steps
        match command:
            case Add(Job() as job):
                steps.add(job)
            case Remove(id):
                steps.remove(id)
            case Report(id):
                tokens = steps.tokens
                slot = SlotState(0, self.engine.info.n_ctx, is_processing=tokens > 0, n_prompt_tokens=tokens)
                self._send(Slots(id, [slot], steps.queued))
            case ReportCache(id) | ClearCache(id):
                self._send(CacheContents(id, []))
            case Resize():
                pass  # it has no prefix cache
            case _:
                raise AssertionError(f"a pooling model cannot handle {command}")

    def _step(self) -> None:
        self._steps.step(self._computing)
