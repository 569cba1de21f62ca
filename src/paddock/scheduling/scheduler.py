"""What goes into the next step: pure decisions on token ids, without a model, a clock or a socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paddock.types import FinishReason, SamplingParams, Span


@dataclass(slots=True, eq=False)
class Request:
    """A request as the scheduler sees it: token ids and how far they have come."""

    id: int
    prompt: list[int]
    sampling: SamplingParams
    max_tokens: int
    output: list[int] = field(default_factory=list)
    computed: int = 0
    """How many of the known tokens (prompt, then output) have been decoded into the cache."""

    @property
    def pending(self) -> int:
        return len(self.prompt) + len(self.output) - self.computed

    def known(self, start: int, end: int) -> list[int]:
        size = len(self.prompt)
        return self.prompt[start : min(end, size)] + self.output[max(start - size, 0) : max(end - size, 0)]


@dataclass(slots=True, frozen=True)
class Plan:
    """One step: the spans to decode and, for each, whose they are."""

    spans: list[Span]
    requests: list[Request]
    forget: list[int]
    """Sequences whose cache is to be cleared before the step."""


@dataclass(slots=True, frozen=True)
class Progress:
    """What a step gave one request: the new token, and the reason if it was the last one."""

    request: Request
    token: int | None
    finish: FinishReason | None


class Scheduler:
    """Chooses the next step's work. Today one request runs at a time, to the end, and the others queue in order."""

    def __init__(self, *, n_ctx: int, n_batch: int, end_tokens: frozenset[int]) -> None:
        self._n_ctx = n_ctx
        self._n_batch = n_batch
        self._end_tokens = end_tokens
        self._queue: deque[Request] = deque()
        self._running: Request | None = None
        self._forget: list[int] = []

    @property
    def idle(self) -> bool:
        return self._running is None and not self._queue

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def remove(self, request_id: int) -> None:
        """Let go of a request, wherever it is. An unknown id has already ended, which is fine."""
        if self._running is not None and self._running.id == request_id:
            self._release()
        else:
            self._queue = deque(request for request in self._queue if request.id != request_id)

    def schedule(self) -> Plan | None:
        if self._running is None:
            if not self._queue:
                return None
            self._running = self._queue.popleft()
        request = self._running
        end = min(request.computed + self._n_batch, len(request.prompt) + len(request.output))
        tokens = request.known(request.computed, end)
        complete = request.computed + len(tokens) == len(request.prompt) + len(request.output)
        span = Span(
            sequence=0,
            start=request.computed,
            tokens=tokens,
            sampling=request.sampling if complete else None,
            drawn=len(request.output),
        )
        forget, self._forget = self._forget, []
        return Plan([span], [request], forget)

    def commit(self, plan: Plan, tokens: Sequence[int | None]) -> list[Progress]:
        """Record what the step computed and sampled, span by span; `None` where nothing was sampled."""
        progress: list[Progress] = []
        for span, request, token in zip(plan.spans, plan.requests, tokens, strict=True):
            request.computed += len(span.tokens)
            if token is None:
                continue
            finish = self._finish(request, token)
            if token not in self._end_tokens:
                request.output.append(token)
            progress.append(Progress(request, None if token in self._end_tokens else token, finish))
            if finish is not None:
                self._release()
        return progress

    def _finish(self, request: Request, token: int) -> FinishReason | None:
        if token in self._end_tokens:
            return "stop"
        produced = len(request.output) + 1
        if produced >= request.max_tokens or len(request.prompt) + produced >= self._n_ctx:
            return "length"
        return None

    def _release(self) -> None:
        self._running = None
        self._forget.append(0)
