"""Streams that survive their connection: a client that names its conversation can continue to read from any byte.

A stream of a request with the header `X-Conversation-Id` is written into a buffer. Its own response and every later
`GET /v1/stream` read from there. Buffers belong to one API key, and their number, size and age are limited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from paddock.errors import InvalidRequest, PaddockError
from paddock.gateway.http.framing import Framing

CONVERSATION_HEADER: Final = "x-conversation-id"
_SEPARATOR: Final = "::"
"""llama-server's page names the answers of several models to one conversation `ID::MODEL`."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BufferLimits:
    per_key: int
    size: int
    """Bytes of one stream."""
    seconds: float
    """How long a finished stream is kept."""


class StreamBuffer:
    """The last bytes of one stream."""

    def __init__(self, conversation: str, framing: Framing, size: int, started: float) -> None:
        self.conversation = conversation
        self.framing = framing
        self.started = started
        self.completed: float | None = None
        self.dropped = 0
        """Bytes at the beginning that are no longer kept."""
        self._kept = bytearray()
        self._size = size
        self._changed = asyncio.Event()
        self._producing: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        return self.completed is not None

    @property
    def total(self) -> int:
        """The bytes of the stream so far."""
        return self.dropped + len(self._kept)

    @property
    def held(self) -> int:
        return len(self._kept)

    def append(self, data: bytes) -> None:
        self._kept += data
        if (excess := len(self._kept) - self._size) > 0:
            del self._kept[:excess]
            self.dropped += excess
        self._wake()

    def finish(self, now: float) -> None:
        if self.completed is None:
            self.completed = now
        self._wake()

    def check(self, offset: int) -> None:
        if offset < self.dropped:
            raise InvalidRequest(
                f"Stream offset lost, please restart: the first {self.dropped} bytes are no longer kept", param="from"
            )

    async def read_from(self, offset: int) -> AsyncGenerator[bytes]:
        """All bytes from the offset to the end of the stream, as they arrive."""
        while True:
            self.check(offset)
            if offset < self.total:
                data = bytes(memoryview(self._kept)[offset - self.dropped :])
                offset += len(data)
                yield data
            elif self.is_done:
                return
            else:
                await self._changed.wait()

    def produce(self, work: asyncio.Task[None]) -> None:
        self._producing = work

    def stop(self) -> None:
        if self._producing is not None:
            self._producing.cancel()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class StreamBuffers:
    """The buffers of all keys, by the name of the key and by conversation."""

    def __init__(self, limits: BufferLimits, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._by_owner: dict[str, dict[str, StreamBuffer]] = {}
        self.resumed = 0

    def open(self, owner: str, conversation: str, framing: Framing) -> StreamBuffer | None:
        """A buffer for a new stream. An earlier stream of the same conversation is stopped. None if the streams of this
        key that are still running use all buffers.
        """
        self.expire()
        self.remove(owner, conversation)
        buffers = self._by_owner.setdefault(owner, {})
        if len(buffers) >= self._limits.per_key:
            oldest = next((name for name, buffer in buffers.items() if buffer.is_done), None)
            if oldest is None:
                return None
            del buffers[oldest]
        buffer = buffers[conversation] = StreamBuffer(conversation, framing, self._limits.size, self._clock())
        return buffer

    def find(self, owner: str, conversation: str) -> StreamBuffer | None:
        self.expire()
        return self._by_owner.get(owner, {}).get(conversation)

    def matching(self, owner: str, conversations: Iterable[str]) -> list[StreamBuffer]:
        """The streams of these conversations, with those of each model. A caller sees no id that it does not know."""
        self.expire()
        buffers = self._by_owner.get(owner, {})
        return [
            buffer
            for wanted in conversations
            for name, buffer in buffers.items()
            if wanted and (name == wanted or name.startswith(wanted + _SEPARATOR))
        ]

    def remove(self, owner: str, conversation: str) -> None:
        """Stop the stream, if it still runs, and forget it."""
        buffer = self._by_owner.get(owner, {}).pop(conversation, None)
        if buffer is not None:
            buffer.stop()
            buffer.finish(self._clock())

    def expire(self) -> None:
        """Forget streams that ended long ago."""
        before = self._clock() - self._limits.seconds
        for owner, buffers in list(self._by_owner.items()):
            for name in [
                name for name, one in buffers.items() if one.completed is not None and one.completed <= before
            ]:
                del buffers[name]
            if not buffers:
                del self._by_owner[owner]

    def fill(
        self,
        buffer: StreamBuffer,
        events: AsyncGenerator[bytes],
        *,
        keep_alive: bytes,
        silence: float,
        error_event: Callable[[PaddockError], bytes],
        on_end: Callable[[], None],
    ) -> None:
        """Write the events into the buffer until they end, with or without readers. After so many seconds of `silence`
        a `keep_alive` is written; -1: never.
        """

        async def produce() -> None:
            try:
                async with aclosing(_with_keep_alive(events, keep_alive, silence)) as paced:
                    async for event in paced:
                        buffer.append(event)
            except PaddockError as error:
                buffer.append(error_event(error))
            except Exception:
                _log.exception("a stream failed")
                buffer.append(error_event(PaddockError("internal error; the server log has the details")))

        def ended(_: object) -> None:
            buffer.finish(self._clock())
            on_end()
            loop.call_later(self._limits.seconds, self.expire)

        loop = asyncio.get_running_loop()
        task = loop.create_task(produce())
        task.add_done_callback(ended)  # not in `produce`, which does not run if it is stopped at once
        buffer.produce(task)

    async def close(self) -> None:
        """Stop all streams."""
        for owner, buffers in list(self._by_owner.items()):
            for conversation in list(buffers):
                self.remove(owner, conversation)
        await asyncio.sleep(0)

    @property
    def count(self) -> int:
        return sum(map(len, self._by_owner.values()))

    @property
    def held(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.held for buffers in self._by_owner.values() for buffer in buffers.values())


async def _with_keep_alive(events: AsyncGenerator[bytes], keep_alive: bytes, silence: float) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        while True:
            following = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait({following}, timeout=silence if silence > 0 else None))[0]:
                    yield keep_alive
            except BaseException:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                raise
            event = following.result()
            if event is None:
                return
            yield event
