"""The requests of one worker: running generations, and calls that wait for a single reply."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from paddock.errors import PaddockError, WorkerCrashed
from paddock.fleet.process.attempt import Attempt
from paddock.wire import messages as wire

Call = wire.Look | wire.LookAtCache | wire.ClearCache | wire.ActOnSlot | wire.Pool | wire.Ask
_NO_USE = (wire.Look, wire.LookAtCache, wire.ClearCache)
"""They do not keep a model loaded."""


class Requests:
    def __init__(self, send: Callable[[wire.ToWorker], None], on_idle: Callable[[], None]) -> None:
        """`on_idle` is called when the last request has ended."""
        self._send = send
        self._on_idle = on_idle
        self.completed = 0
        """The number of completed requests."""
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

    async def call(self, message: Call, on_progress: Callable[[int], None] | None = None) -> Any:
        """Send a message and wait for its reply. Cancelling it aborts the work.

        `on_progress` gets the number of tokens computed so far for an embedding request.
        """
        id, is_use = message.id, not isinstance(message, _NO_USE)
        reply = self._calls[id] = asyncio.get_running_loop().create_future()
        if on_progress is not None:
            self._progress[id] = on_progress
        if is_use:
            self._using_calls += 1
            self._idle.clear()
        self._send(message)
        try:
            answer = await reply
            self.completed += is_use
            return answer
        except asyncio.CancelledError:
            self._send(wire.Abort(id))
            raise
        finally:
            del self._calls[id]
            self._progress.pop(id, None)
            self._parts.pop(id, None)
            self._using_calls -= is_use
            self._check_idle()

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def abort(self, id: int) -> None:
        if self._remove(id) is not None:
            self._send(wire.Abort(id))

    def fail_all(self, error: PaddockError) -> None:
        if isinstance(error, WorkerCrashed) and self.pending:
            error.requests = len(self._attempts) + len(self._calls)
        for id, attempt in list(self._attempts.items()):
            attempt.put(error)
            self.abort(id)
        for reply in self._calls.values():
            if not reply.done():
                reply.set_exception(error)

    def on_message(self, message: wire.ToGateway) -> None:
        """Deliver a reply. Replies to aborted requests are ignored."""
        match message:
            case wire.Step(deltas):
                for delta in deltas:
                    if (attempt := self._attempts.get(delta.id)) is not None:
                        attempt.put(delta)
                        if delta.finish is not None:
                            attempt.unfinished -= 1
                            if not attempt.unfinished:
                                self.completed += 1
                                self._remove(delta.id)
            case wire.Accepted(id):
                if (attempt := self._attempts.get(id)) is not None:
                    attempt.put(message)
            case wire.Refused(id, problem):
                if (attempt := self._remove(id)) is not None:
                    attempt.put(problem.error())
                elif (reply := self._open_call(id)) is not None:
                    reply.set_exception(problem.error())
            case wire.TokensPart(id, listed):
                if id in self._calls:
                    self._parts.setdefault(id, bytearray()).extend(listed)
            case wire.Tokens(id) if id in self._parts:
                if (reply := self._open_call(id)) is not None:
                    listed = bytes(self._parts.pop(id) + message.listed)
                    reply.set_result(msgspec.structs.replace(message, listed=listed))
            case wire.Pooling(tokens):
                for id, count in tokens:
                    if (on_progress := self._progress.get(id)) is not None:
                        on_progress(count)
            case (
                wire.Pooled(id)
                | wire.Slots(id)
                | wire.CacheContents(id)
                | wire.SlotDone(id)
                | wire.Tokens(id)
                | wire.Text(id)
            ):
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
