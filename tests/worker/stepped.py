"""The engine thread of a worker without a thread: the test runs its steps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from paddock.engine import Engine
from paddock.engine.fake import FakeEngine
from paddock.scheduling import Request
from paddock.text import StopStrings
from paddock.types import EngineOptions, GenerateRequest, Operation
from paddock.wire.messages import Delta, Stats, Step
from paddock.worker.commands import Add, Ended, Event, Explained, Failed
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.generation_thread import GenerationThread
from paddock.worker.preparation import PreparedPrompt
from paddock.worker.prompts import Reply
from paddock.worker.sequences import scheduler_requests
from tests.options import engine_options


class FreeLock(CpuLock):
    """There is no other worker."""

    def __init__(self) -> None: ...

    @contextmanager
    def hold(self) -> Iterator[None]:
        yield


class SteppedThread(GenerationThread):
    def __init__(self, model: str, *, overlaps: bool | None, **options: Any) -> None:
        super().__init__(model, engine_options(**options), FreeLock(), self._note_event, self._note, overlaps=overlaps)
        self.answers: defaultdict[tuple[int, int], list[Delta]] = defaultdict(list)
        self.ended: list[tuple[int, int]] = []
        self.failed: dict[int, str] = {}
        self._sent: list[Stats] = []
        self.state_lock.acquire()  # as `_main` does
        self._open()

    def ask(
        self, id: int, text: str, request: GenerateRequest, grammar: Any = None, reply: Reply | None = None
    ) -> None:
        for built in new_requests(self.engine, self._options, id, text, request, grammar, reply):
            self.tell(Add(built))

    def step(self) -> bool:
        """False: there is nothing left to do."""
        if self._is_idle and not self._inbox.qsize():
            return False
        self._receive()
        self._step()
        return True

    def run(self) -> None:
        """Run until it is idle, and check that nothing is left behind."""
        while self.step():
            self._last_step = float("-inf")  # it need not wait before it writes prefixes back
        assert self._publisher.is_empty
        self._scheduler.check_idle()
        assert set(self.engine.used_sequences()) == set(self._scheduler.cache.resident)

    def _apply(self, operations: list[Operation]) -> dict[int, float]:
        restored = super()._apply(operations)
        if isinstance(self.engine, FakeEngine):
            assert self._scheduler.cache.used == self.engine.used_cells, "the counters agree with the cells"
        return restored

    def _note(self, message: Any) -> None:
        if isinstance(message, Step):
            for delta in message.deltas:
                self.answers[delta.id, delta.index].append(delta)
        elif isinstance(message, Stats):
            self._sent.append(message)

    def count(self, field: str) -> int:
        """The sum of a field of all tallies. The first call takes what is not sent yet."""
        self._sent.append(self.counters.last())
        return sum(getattr(stats.tally, field) for stats in self._sent)

    def _note_event(self, event: Event) -> None:
        match event:
            case Ended(id, index):
                self.ended.append((id, index))
            case Failed(id, error):
                self.failed[id] = error.message
            case Explained(delta):
                self.answers[delta.id, delta.index].append(delta)


def new_requests(
    engine: Engine,
    options: EngineOptions,
    id: int,
    text: str,
    request: GenerateRequest,
    grammar: Any = None,
    reply: Reply | None = None,
) -> list[Request]:
    """One for each answer."""
    tokens = engine.vocab.tokenize(text, add_special=True, parse_special=True)
    sampler = engine.sampler(request.sampling, tokens, grammar)
    prompt = PreparedPrompt(tokens, None, sampler, StopStrings(request.stop), reply)
    build = scheduler_requests(id, request, prompt, engine, options, time.perf_counter())
    return [build(index) for index in range(request.n)]


def comparable(delta: Delta) -> Delta:
    """Without what depends on the clock, on other requests, and on how a client's tokens were guessed."""
    usage = delta.usage
    if usage is not None:
        usage = msgspec.structs.replace(usage, cached_tokens=0)
    return msgspec.structs.replace(delta, usage=usage, timings=None, slot=0)
