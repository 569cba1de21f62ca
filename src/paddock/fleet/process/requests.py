"""The requests of one worker: running generations, and calls that wait for a single reply."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from paddock.errors import PaddockError
from paddock.fleet.process.attempt import Attempt
from paddock.wire.messages import (
    Abort,
    Accepted,
    ActOnSlot,
    Ask,
    Look,
    Pool,
    Pooled,
    Pooling,
    Refused,
    SlotDone,
    Slots,
    Step,
    Text,
    ToGateway,
    Tokens,
    TokensPart,
    ToWorker,
)

Call = Look | ActOnSlot | Pool | Ask


class Requests:
    def __init__(self, send: Callable[[ToWorker], None], on_idle: Callable[[], None]) -> None:
        """`on_idle` is called when the last request has ended."""
        self._send = send
        self._on_idle = on_idle
        self.completed = 0
        self._ids = itertools.count(1)
        self._attempts: dict[int, Attempt] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._progress: dict[int, Callable[[int], None]] = {}
        self._parts: dict[int, bytearray] = {}
        """Received parts of long token lists."""
        self._using_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Generations and embedding requests."""
        return len(self._attempts) + len(self._progress)

    @property
    def busy(self) -> bool:
        """Whether the worker is in use. Reading its slots is not use."""
        return bool(self._attempts) or self._using_calls > 0

    @property
    def pending(self) -> bool:
        """Whether any reply is outstanding."""
        return bool(self._attempts or self._calls)

    def next_id(self) -> int:
        return next(self._ids)

    def add(self, id: int, attempt: Attempt) -> None:
        self._attempts[id] = attempt
        self._idle.clear()

    async def call(self, message: Call) -> Any:
        """Send a message and wait for its reply. Cancelling it aborts the work."""
        reply = self._calls[message.id] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            return await reply
        except asyncio.CancelledError:
            self._send(Abort(message.id))
            raise
        finally:
            del self._calls[message.id]
            self._parts.pop(message.id, None)

    @contextmanager
    def use(self) -> Iterator[None]:
        """A call in here counts as use of the worker."""
        self._using_calls += 1
        self._idle.clear()
        try:
            yield
            self.completed += 1
        finally:
            self._using_calls -= 1
            self._check_idle()

    @contextmanager
    def progress(self, id: int, on_progress: Callable[[int], None]) -> Iterator[None]:
        """Report the tokens computed so far for this embedding request."""
        self._progress[id] = on_progress
        try:
            yield
        finally:
            del self._progress[id]

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def abort(self, id: int) -> None:
        if self._remove(id) is not None:
            self._send(Abort(id))

    def fail_all(self, error: PaddockError) -> None:
        for id, attempt in list(self._attempts.items()):
            attempt.put(error)
            self.abort(id)
        for reply in self._calls.values():
            if not reply.done():
                reply.set_exception(error)

    def on_message(self, message: ToGateway) -> None:
        """Deliver a reply. Replies to aborted requests are ignored."""
        match message:
            case Step(deltas):
                for delta in deltas:
                    if (attempt := self._attempts.get(delta.id)) is not None:
                        attempt.put(delta)
                        if delta.finish is not None:
                            attempt.unfinished -= 1
                            if not attempt.unfinished:
                                self.completed += 1
                                self._remove(delta.id)
            case Accepted(id):
                if (attempt := self._attempts.get(id)) is not None:
                    attempt.put(message)
            case Refused(id, problem):
                if (attempt := self._remove(id)) is not None:
                    attempt.put(problem.error())
                elif (reply := self._open_call(id)) is not None:
                    reply.set_exception(problem.error())
            case TokensPart(id, listed):
                if id in self._calls:
                    self._parts.setdefault(id, bytearray()).extend(listed)
            case Tokens(id) if id in self._parts:
                if (reply := self._open_call(id)) is not None:
                    listed = bytes(self._parts.pop(id) + message.listed)
                    reply.set_result(msgspec.structs.replace(message, listed=listed))
            case Pooling(tokens):
                for id, count in tokens:
                    if (on_progress := self._progress.get(id)) is not None:
                        on_progress(count)
            case Pooled(id) | Slots(id) | SlotDone(id) | Tokens(id) | Text(id):
                if (reply := self._open_call(id)) is not None:
                    reply.set_result(message)

    def _open_call(self, id: int) -> asyncio.Future[Any] | None:
        reply = self._calls.get(id)
        return None if reply is None or reply.done() else reply

    def _remove(self, id: int) -> Attempt | None:
        attempt = self._attempts.pop(id, None)
        self._check_idle()
        return attempt

    def _check_idle(self) -> None:
        if not self.busy and not self._idle.is_set():
            self._idle.set()
            self._on_idle()
