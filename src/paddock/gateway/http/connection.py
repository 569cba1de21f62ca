"""A connection that cannot be held for nothing: what uvicorn leaves open of one is bounded here.

Requests have heads of a bounded size that come within a time, an answer that nobody reads ends its connection, and when
there are too many connections those that wait for nothing make room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec
import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from paddock.errors import HeadersTooLarge, InvalidRequest, PaddockError, RequestTimeout, TooManyConnections, URITooLong
from paddock.gateway.http.connection_limits import ConnectionLimits
from paddock.gateway.http.connection_slots import PLACE, Crowd, Place, Places, network_of
from paddock.gateway.http.request_ids import new_request_id

_log = structlog.get_logger(__name__)
_LINGER = 3.0
"""Seconds for which what nobody wants is read all the same: one who still sends could not read the answer."""
_MOST_LINGERING = 128
"""Connections over the limit that are told so before they are closed."""
_MOST_AHEAD = 64
"""Requests that a client may send while one of its requests is under way. What they hold is kept in memory."""
_MOST_BYTES_AHEAD = 64 * 1024
"""Of their bodies."""


class Guest(Protocol):
    """Somebody who has a connection, or is about to have one."""

    def make_room(self) -> None: ...


def bounded_protocol(limits: ConnectionLimits) -> type[Connection]:
    """The protocol for one server. uvicorn makes an instance for each connection."""

    class Bounded(Connection):
        _limits = limits
        _crowd = Crowd(limits.connections, limits.per_address)
        _places = Places(limits.places)

    return Bounded


class Connection(HttpToolsProtocol):
    _limits: ClassVar[ConnectionLimits]
    _crowd: ClassVar[Crowd[Guest]]
    _places: ClassVar[Places]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.on_made: Callable[[], None] = lambda: None
        """Called when the connection is there."""
        self._in_head = False
        self._asked = False
        """Whether there has been a request at all."""
        self._overhead = 0
        """Bytes since the last of a body, or between requests: of a head, or of what else there is around a body."""
        self._body_complete = True
        self._refusal: PaddockError | None = None
        """Why nothing more is read."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._asking: deque[Place] = deque()
        """The places of requests that are not answered yet, the oldest first."""
        self._ahead = 0
        """Bytes of bodies that were sent before the request before them was answered."""

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.on_made()
        try:
            self.enter(network_of(self.client[0]) if self.client is not None else "", self)
        except TooManyConnections as error:
            self._refuse_connection(error)
            return
        self._after("head", self._limits.header_timeout, self._on_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.leave(self)
        while self._asking:
            self._asking.popleft().release()
        self._unset_keepalive_if_required()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_over():
            return
        self._overhead += len(data)
        super().data_received(data)
        if self._is_over():
            return
        if self._overhead > self._limits.header_bytes:
            self._refuse(self._too_large())  # a single header may be endless, and so may what follows a body
        elif self._in_head and "head" not in self._timers:
            self._after("head", self._limits.header_timeout, self._on_late_head)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._after("write", self._limits.write_timeout, self._on_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._no_longer("write")

    def shutdown(self) -> None:
        super().shutdown()
        self._see_off()

    # ── the parser's ─────────────────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._body_complete = False

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            raise self._refused(URITooLong(f"the address has more than {self._limits.url_bytes} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: it came after the request was let in, so it must say nothing about it
        super().on_header(name, value)
        if len(self.headers) > self._limits.header_count:
            most = self._limits.header_count
            raise self._refused(HeadersTooLarge(f"there are more than {most} headers, which is the limit"))

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > self._limits.header_bytes:
            raise self._refused(self._too_large())
        self._in_head = False
        self._asked = True
        self._overhead = 0
        self._no_longer("head")
        self._crowd.work(self)
        self.scope[PLACE] = place = Place(self._places, on_key=lambda: self._crowd.has_key(self))  # type: ignore[typeddict-unknown-key]
        self._asking.append(place)
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_AHEAD:
            raise self._refused(InvalidRequest(f"more than {_MOST_AHEAD} requests were sent ahead"))

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)
        if self.pipeline:
            self._ahead += len(body)
            if self._ahead > _MOST_BYTES_AHEAD:
                raise self._refused(InvalidRequest(f"more than {_MOST_BYTES_AHEAD} bytes were sent ahead"))

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._overhead = 0
        self._body_complete = True
        self._no_longer("linger")
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_another()

    def on_response_complete(self) -> None:
        if self._asking:
            self._asking.popleft().release()
        if not self.pipeline:
            self._ahead = 0
        super().on_response_complete()
        if self.transport.is_closing():
            self._see_off()
        elif not self.cycle.response_complete:
            self._unset_keepalive_if_required()  # a request that was sent ahead is under way
        elif self._body_complete or self._in_head:
            self._wait_for_another()
        elif self.expect_100_continue:
            self._close()  # whether the body will still come nobody knows
        else:
            self._after("linger", _LINGER, self._close)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._see_off()

    def _unsupported_upgrade_warning(self) -> None:
        """Offers of another protocol are ignored, as they may be."""

    def send_400_response(self, msg: str) -> None:
        """Called for anything that the parser did not take, and that includes what was refused in its callbacks."""
        self._refuse(self._refusal or InvalidRequest("this is no valid HTTP request"))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, address: str, guest: Guest) -> None:
        """Count a new connection, and end another if it takes that. Raises `TooManyConnections`."""
        leaving = self._crowd.arrive(guest, address)
        self.connections.add(guest)  # type: ignore[arg-type]  # uvicorn asks of them no more than `shutdown`
        if leaving is not None:
            leaving.make_room()

    def leave(self, guest: Guest) -> None:
        self._crowd.leave(guest)
        self.connections.discard(guest)

    def make_room(self) -> None:
        """Nothing is under way here, and somebody else wants a connection."""
        self.leave(self)
        self.transport.abort()

    def _is_over(self) -> bool:
        return self._refusal is not None or self.transport.is_closing()

    def _wait_for_another(self) -> None:
        """A response is complete, and a request may follow."""
        self._crowd.rest(self)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _on_late_head(self) -> None:
        if self._overhead:
            seconds = self._limits.header_timeout
            self._refuse(RequestTimeout(f"the head of the request was not complete within {seconds:g} s"))
        else:
            self._close()

    def _on_unread(self) -> None:
        _log.info("a client does not read its answer", seconds=self._limits.write_timeout)
        self.transport.abort()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the headers have more than {self._limits.header_bytes} bytes, which is the limit")

    def _refused(self, refusal: PaddockError) -> PaddockError:
        """To be raised from a callback of the parser, which makes an error of its own of it."""
        self._refusal = refusal
        return refusal

    def _refuse(self, error: PaddockError) -> None:
        """Answer without the application, and read nothing more."""
        self._refusal = error
        self._crowd.work(self)
        request_id = new_request_id()
        _log.info("refused", status=error.status, reason=error.message, request_id=request_id)
        if self._asked and not self.cycle.response_complete:
            self._close()  # there is another answer on its way
            return
        body = msgspec.json.encode(error.body() | {"request_id": request_id})
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
        if error.retry_after is not None:
            head += f"retry-after: {error.retry_after:g}\r\n"
        head += "x-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._after("linger", _LINGER, self._close)

    def _refuse_connection(self, error: TooManyConnections) -> None:
        if len(self.connections) > len(self._crowd) + _MOST_LINGERING:
            self.transport.abort()
        else:
            self._refuse(error)

    def _close(self) -> None:
        self.transport.close()
        self._see_off()

    def _see_off(self) -> None:
        """What is written is sent before a connection closes, unless nobody takes it."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._after("close", self._limits.write_timeout, self.transport.abort)

    def _after(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        self._no_longer(name)
        self._timers[name] = self.loop.call_later(seconds, act)

    def _no_longer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
