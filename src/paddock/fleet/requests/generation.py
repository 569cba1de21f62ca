"""A generation request and its retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from paddock.errors import PaddockError, WorkerCrashed
from paddock.fleet.requests.quarantine import Quarantine
from paddock.fleet.requests.request_record import CANCELLED, RequestRecord
from paddock.replicas.replica import Attempt, Backend, Dispatch
from paddock.types import (
    Adapters,
    CacheReport,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    ReceiptFacts,
    TimeParts,
    Timings,
    Usage,
)
from paddock.wire.messages import Delta


class WorkerDispatch:
    """The dispatch of a model with one worker: retries at most `restarts` crashes."""

    replica = ""

    def __init__(self, acquire: Callable[[], Awaitable[Backend]], *, restarts: int = 1) -> None:
        self._acquire = acquire
        self._restarts = restarts

    async def acquire(self) -> Backend:
        return await self._acquire()

    def should_retry(self, error: PaddockError) -> bool:
        self._restarts -= isinstance(error, WorkerCrashed)
        return isinstance(error, WorkerCrashed) and self._restarts >= 0


class Generation:
    """An async iterator of a request's deltas. Raises the `PaddockError` that ended the request early.

    A failure before the first delta is retried as long as the dispatch allows it. Call `close` when done; closing
    twice is harmless.
    """

    def __init__(
        self,
        request: GenerateRequest,
        dispatch: Dispatch,
        record: RequestRecord,
        quarantine: asyncio.Lock | None = None,
    ) -> None:
        """`quarantine` is the lock that the model's requests share after a crash."""
        self._request = request
        self._dispatch = dispatch
        self._attempt: Attempt | None = None
        self._closed = False
        self._has_delta = False
        self._record = record
        self._outcome = CANCELLED
        self._load_seconds = 0.0
        self._quarantine = Quarantine(quarantine or asyncio.Lock())
        self.cache_report: CacheReport | None = None
        """With the last delta of an answer, if requested. A remote server that is not a Paddock sends none."""
        self.receipts: dict[int, tuple[ReceiptFacts, FinishReason]] = {}
        """What receipts of the complete answers need, by the number of the answer, if requested."""

    async def begin(self) -> None:
        """Wait until a worker accepts the request. Raises why none does."""
        self._outcome = CANCELLED
        try:
            while not await self._try():
                pass
        except PaddockError as error:
            self._outcome = error.code
            self._quarantine.release()
            raise

    async def _try(self) -> bool:
        await self._quarantine.begin_attempt()
        begun = time.monotonic()
        backend = await self._dispatch.acquire()
        self._load_seconds += time.monotonic() - begun
        self._record.model_ready(self._dispatch.replica)
        self._attempt = backend.generate(self._request)
        try:
            await self._attempt.accepted()
        except PaddockError as error:
            if not self._may_retry(error):
                raise
            return False
        # On a cluster the replica is known only now.
        self._record.mark_accepted(self._attempt.prompt_tokens, self._attempt.answers, self._dispatch.replica)
        return True

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        while True:
            try:
                return self._received(await anext(self.attempt))
            except PaddockError as error:
                await self._retry(error, may_restart=not self._has_delta)

    async def all_deltas(self) -> list[Delta]:
        """Every delta, at the end. The client has seen none of them, so a failure after some is retried too."""
        deltas: list[Delta] = []
        while True:
            try:
                async for delta in self.attempt:
                    deltas.append(self._received(delta))
                return deltas
            except PaddockError as error:
                await self._retry(error)
                deltas.clear()

    def _received(self, delta: Delta) -> Delta:
        self._has_delta = True
        if delta.usage is not None and delta.usage.cache_report is not None:
            self.cache_report = delta.usage.cache_report
        if delta.finish is not None and delta.usage is not None and delta.usage.receipt is not None:
            self.receipts[delta.index] = delta.usage.receipt, delta.finish
        self._quarantine.delta_received()
        self._record.count_delta(delta)
        return delta if delta.finish is None else self._with_parts(delta)

    def _with_parts(self, delta: Delta) -> Delta:
        """With what the whole time since the request began was spent on."""
        timings = delta.timings or Timings()
        # Other servers report less.
        known = timings.parts or TimeParts(prefill=timings.prompt, decode=timings.generation)
        known = msgspec.structs.replace(known, load=known.load + self._load_seconds, overhead=0.0)
        rest = time.monotonic() - self._record.began - known.total
        parts = msgspec.structs.replace(known, overhead=max(rest, 0.0))
        return msgspec.structs.replace(delta, timings=msgspec.structs.replace(timings, parts=parts))

    async def _retry(self, error: PaddockError, *, may_restart: bool = True) -> None:
        """Start again after this failure, or raise it. Called once for each failure."""
        if not (may_restart and self._may_retry(error)):
            self._outcome = error.code
            raise error
        await self.begin()

    def close(self) -> None:
        """End the request and free its slot."""
        self._closed = True
        self._quarantine.release()
        self._record.end(self._outcome)
        if self._attempt is not None:
            self._attempt.close()

    @property
    def attempt(self) -> Attempt:
        """The current attempt."""
        assert self._attempt is not None, "`begin` was called"
        return self._attempt

    @property
    def adapters(self) -> Adapters:
        return self.attempt.adapters

    @property
    def n_ctx(self) -> int:
        return self.attempt.n_ctx

    @property
    def fingerprint(self) -> str:
        return self.attempt.fingerprint

    @property
    def worker_info(self) -> ModelInfo | None:
        """Of the worker that answers; None if it is not one of this server."""
        return self.attempt.worker_info

    @property
    def prompt_tokens(self) -> int:
        return self.attempt.prompt_tokens

    @property
    def replica(self) -> str:
        """The replica that has it, if there are several; else empty."""
        return self._dispatch.replica

    @property
    def load_seconds(self) -> float:
        """How long it waited for its model."""
        return 0.0 if self._record.ready is None else self._record.ready - self._record.began

    @property
    def used(self) -> Usage:
        """The tokens so far."""
        return self._record.used

    def when_ended(self, listener: Callable[[Usage], None]) -> None:
        """Call the listener with the final usage, before the last delta is delivered."""
        self._record.when_ended(lambda record: listener(record.used))

    @property
    def finish_reasons(self) -> frozenset[FinishReason]:
        """The finish reasons of its complete completions."""
        return frozenset(self._record.finishes)

    @property
    def failed(self) -> bool:
        """Whether the reader got an error."""
        return self._outcome != CANCELLED

    @property
    def prompt(self) -> list[tuple[int, bytes]]:
        """The prompt's tokens and their texts, if requested."""
        return self.attempt.prompt

    def _may_retry(self, error: PaddockError) -> bool:
        is_cause = self._quarantine.failed(error)
        return not self._closed and not is_cause and self._dispatch.should_retry(error)
