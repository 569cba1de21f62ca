"""A request on its way to an answer, whichever worker gives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from paddock.errors import WorkerCrashed
from paddock.fleet.process import Attempt, WorkerProcess
from paddock.types import Adapters, GenerateRequest
from paddock.wire import Delta

_RETRIES = 1


class Generation:
    """An async iterator of a request's deltas, in order, that ends after the last.

    Raises the `PaddockError` that ended the request early. Leave it with `close`, which is harmless when it is over. A
    worker that dies before anything was told is replaced by another one, once, and nobody notices.
    """

    def __init__(
        self, request: Callable[[int], GenerateRequest], enter: Callable[[], Awaitable[WorkerProcess]]
    ) -> None:
        self._request = request
        self._enter = enter
        self._attempt: Attempt | None = None
        self._retries = _RETRIES
        self._told = False
        self.ends: list[Delta] = []
        """The last delta of each answer that is complete."""

    async def begin(self) -> None:
        """Have the request accepted by a worker. Raises why it was not."""
        while True:
            worker = await self._enter()
            self._attempt = worker.generate(self._request)
            try:
                return await self._attempt.accepted()
            except WorkerCrashed:
                if not self._may_retry():
                    raise

    async def restart(self) -> bool:
        """Begin anew after the worker has died, for who has kept to himself what he was told. False: no more."""
        if not self._may_retry():
            return False
        self._told = False
        self.ends.clear()
        await self.begin()
        return True

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        while True:
            try:
                delta = await anext(self.attempt)
            except WorkerCrashed:
                if self._told or not self._may_retry():
                    raise
                await self.begin()
            else:
                self._told = True
                if delta.finish is not None:
                    self.ends.append(delta)
                return delta

    def close(self) -> None:
        """Nobody listens any more: the worker frees the request's place."""
        self._retries = 0
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
    def prompt(self) -> list[tuple[int, bytes]]:
        """The prompt's tokens and their names, where the request asked for them."""
        return self.attempt.prompt

    def _may_retry(self) -> bool:
        self._retries -= 1
        return self._retries >= 0
