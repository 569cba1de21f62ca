"""A request on its way to an answer, whichever worker gives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from paddock.errors import PaddockError, WorkerCrashed
from paddock.fleet.journey import LEFT, Journey
from paddock.fleet.process import Attempt, WorkerProcess
from paddock.types import Adapters, FinishReason, GenerateRequest, Usage
from paddock.wire import Delta

_RETRIES = 1


class Generation:
    """An async iterator of a request's deltas, in order, that ends after the last.

    Raises the `PaddockError` that ended the request early. Leave it with `close`, which is harmless when it is over. A
    worker that dies before anything was told is replaced by another one, once, and nobody notices.
    """

    def __init__(
        self,
        request: Callable[[int], GenerateRequest],
        enter: Callable[[], Awaitable[WorkerProcess]],
        journey: Journey,
    ) -> None:
        self._request = request
        self._enter = enter
        self._attempt: Attempt | None = None
        self._retries = _RETRIES
        self._told = False
        self._journey = journey
        self._outcome = LEFT

    async def begin(self) -> None:
        """Have the request accepted by a worker. Raises why it was not."""
        self._outcome = LEFT
        try:
            while not await self._try():
                pass
        except PaddockError as error:
            self._outcome = error.code
            raise

    async def _try(self) -> bool:
        worker = await self._enter()
        self._journey.entered()
        self._attempt = worker.generate(self._request)
        try:
            await self._attempt.accepted()
        except WorkerCrashed:
            if not self._may_retry():
                raise
            return False
        self._journey.was_accepted(self._attempt.prompt_tokens, self._attempt.answers)
        return True

    async def restart(self) -> bool:
        """Begin anew after the worker has died, for who has kept to himself what he was told. False: no more."""
        if not self._may_retry():
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
                if not isinstance(error, WorkerCrashed) or self._told or not self._may_retry():
                    self._outcome = error.code
                    raise
                await self.begin()
            else:
                self._told = True
                self._journey.told(delta)
                return delta

    def close(self) -> None:
        """Nobody listens any more: the worker frees the request's place."""
        self._retries = 0
        self._journey.end(self._outcome)
        if self._attempt is not None:
            self._attempt.close()

    @property
    def attempt(self) -> Attempt:
        """What the worker that has it knows of it."""
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
    def used(self) -> Usage:
        """The tokens so far."""
        return self._journey.used

    @property
    def finish_reasons(self) -> frozenset[FinishReason]:
        """Of its answers that are complete."""
        return frozenset(self._journey.finishes)

    @property
    def failed(self) -> bool:
        """Who read it was told that it had."""
        return self._outcome != LEFT

    @property
    def prompt(self) -> list[tuple[int, bytes]]:
        """The prompt's tokens and their names, where the request asked for them."""
        return self.attempt.prompt

    def _may_retry(self) -> bool:
        self._retries -= 1
        return self._retries >= 0
