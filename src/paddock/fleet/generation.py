"""A request on its way to an answer, whoever gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from paddock.errors import PaddockError, WorkerCrashed
from paddock.fleet.requests.quarantine import Quarantine
from paddock.fleet.requests.request_record import CANCELLED, RequestRecord
from paddock.replicas.replica import Attempt, Entrance, Serving
from paddock.types import Adapters, FinishReason, GenerateRequest, Usage
from paddock.wire import Delta


class OneWorker:
    """Who dies over a request is replaced, `restarts` times at most."""

    replica = ""

    def __init__(self, enter: Callable[[], Awaitable[Serving]], *, restarts: int = 1) -> None:
        self._enter = enter
        self._restarts = restarts

    async def enter(self) -> Serving:
        return await self._enter()

    def may_go_elsewhere(self, error: PaddockError) -> bool:
        self._restarts -= isinstance(error, WorkerCrashed)
        return isinstance(error, WorkerCrashed) and self._restarts >= 0


class Generation:
    """An async iterator of a request's deltas, in order, that ends after the last.

    Raises the `PaddockError` that ended the request early. Leave it with `close`, which is harmless when it is over.
    Who fails before anything was told is replaced by another one, as far as the entrance allows, and nobody notices.
    """

    def __init__(
        self,
        request: GenerateRequest,
        entrance: Entrance,
        record: RequestRecord,
        quarantine: asyncio.Lock | None = None,
    ) -> None:
        """`quarantine` is the lock of all requests to the model that were there when a worker crashed."""
        self._request = request
        self._entrance = entrance
        self._attempt: Attempt | None = None
        self._closed = False
        self._told = False
        self._record = record
        self._outcome = CANCELLED
        self._quarantine = Quarantine(quarantine or asyncio.Lock())

    async def begin(self) -> None:
        """Have the request accepted by a worker. Raises why it was not."""
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
        serving = await self._entrance.enter()
        self._record.model_ready(self._entrance.replica)
        self._attempt = serving.generate(self._request)
        try:
            await self._attempt.accepted()
        except PaddockError as error:
            if not self._may_retry(error):
                raise
            return False
        # Only now is it certain who has it, where somebody else chooses.
        self._record.mark_accepted(self._attempt.prompt_tokens, self._attempt.answers, self._entrance.replica)
        return True

    async def restart(self, error: PaddockError) -> bool:
        """Begin anew after this failure, for who has kept to himself what he was told. False: no more."""
        if not self._may_retry(error):
            return False
        self._told = False
        await self.begin()
        return True

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        while True:
            try:
                delta = await anext(self.attempt)
            except PaddockError as error:
                if self._told or not self._may_retry(error):
                    self._outcome = error.code
                    raise
                await self.begin()
            else:
                self._told = True
                self._quarantine.delta_received()
                self._record.count_delta(delta)
                return delta

    def close(self) -> None:
        """Nobody listens any more: the worker frees the request's place."""
        self._closed = True
        self._quarantine.release()
        self._record.end(self._outcome)
        if self._attempt is not None:
            self._attempt.close()

    @property
    def attempt(self) -> Attempt:
        """What is known of it by whoever has it."""
        assert self._attempt is not None, "it has begun"
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
    def prompt_tokens(self) -> int:
        return self.attempt.prompt_tokens

    @property
    def replica(self) -> str:
        """Who has it, where there are several; else empty."""
        return self._entrance.replica

    @property
    def used(self) -> Usage:
        """The tokens so far."""
        return self._record.used

    def when_ended(self, tell: Callable[[Usage], None]) -> None:
        """Tell what it has used once that is certain, and before anybody hears the last of it."""
        self._record.when_ended(lambda record: tell(record.used))

    @property
    def finish_reasons(self) -> frozenset[FinishReason]:
        """Of its answers that are complete."""
        return frozenset(self._record.finishes)

    @property
    def failed(self) -> bool:
        """Who read it was told that it had."""
        return self._outcome != CANCELLED

    @property
    def prompt(self) -> list[tuple[int, bytes]]:
        """The prompt's tokens and their names, where the request asked for them."""
        return self.attempt.prompt

    def _may_retry(self, error: PaddockError) -> bool:
        is_cause = self._quarantine.failed(error)
        return not self._closed and not is_cause and self._entrance.may_go_elsewhere(error)
