"""The HTTP protocol of one connection, with the limits that uvicorn does not have.

The head of a request has a maximum size and a timeout, a client that does not read its answer is disconnected, and idle
connections are closed when there are too many.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from paddock.config import ServerSettings
from paddock.errors import HeadersTooLarge, InvalidRequest, PaddockError, RequestTimeout, TooManyConnections, URITooLong
from paddock.gateway.http.connection_slots import (
    REQUEST_ENTRY,
    ConnectionLimits,
    ConnectionTable,
    RequestEntry,
    RequestTable,
    network_of,
)
from paddock.gateway.http.request_context import REQUEST_ID, log_refusal
from paddock.gateway.http.responses import error_body

_log = structlog.get_logger(__name__)
UNIX_CLIENT = "127.0.0.1"
"""The address of clients on unix sockets. A proxy there is trusted to name its clients, as one on this address is."""
_LINGER = 3.0
"""Seconds for which data is still read after a refusal: a client that is still sending could not read the answer."""
_MOST_LINGERING = 128
"""Connections over the limit that get an error response before they are closed."""
_MOST_PIPELINED = 64
"""Pipelined requests, which are kept in memory."""
_MOST_PIPELINED_BYTES = 64 * 1024
"""Bytes of the bodies of pipelined requests."""


def is_unix(sock: Any) -> bool:
    return sock is not None and sock.family == socket.AF_UNIX


def bounded_protocol(limits: ConnectionLimits) -> type[Connection]:
    """The protocol class for one server. uvicorn creates an instance for each connection."""

    class Bounded(Connection):
        _settings = limits.settings
        _table = ConnectionTable(limits.connections, limits.per_address)
        _requests = RequestTable(limits)

    return Bounded


class Connection(HttpToolsProtocol):
    _settings: ClassVar[ServerSettings]
    _table: ClassVar[ConnectionTable[Connection]]
    _requests: ClassVar[RequestTable]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.handshake: asyncio.Task[None] | None = None
        """The TLS handshake until it is complete. Such a connection is counted when it is accepted."""
        self._in_head = False
        self._has_request = False
        """Whether a request has been received."""
        self._overhead = 0
        """Bytes that are not part of a body: heads, chunk sizes and trailers."""
        self._body_complete = True
        self._refusal: PaddockError | None = None
        """The error after which nothing more is read."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._entries: deque[RequestEntry] = deque()
        """The entries of requests that are not answered yet, the oldest first."""
        self._pipelined_bytes = 0
        """Bytes of the bodies of pipelined requests."""

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is None and is_unix(transport.get_extra_info("socket")):
            self.client = (UNIX_CLIENT, 0)
        handshake, self.handshake = self.handshake, None
        if handshake is None:
            try:
                self.enter(network_of(self.client[0]) if self.client is not None else "")
            except TooManyConnections as error:
                self._refuse_connection(error)
                return
        self._set_timer("head", self._settings.header_timeout, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.leave()
        while self._entries:
            self._entries.popleft().release()
        self._unset_keepalive_if_required()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_closed():
            return
        self._overhead += len(data)
        super().data_received(data)
        if self._is_closed():
            return
        if self._overhead > self._settings.max_header_bytes:
            self._refuse(self._too_large())  # a header or a trailer may be endless
        elif self._in_head and "head" not in self._timers:
            self._set_timer("head", self._settings.header_timeout, self._on_head_timeout)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_timer("write", self._settings.write_timeout, self._on_write_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_timer("write")

    def shutdown(self) -> None:
        if self.handshake is not None:
            self.make_room()
            return
        super().shutdown()
        self._abort_later()

    # ── callbacks of the parser ───────────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._body_complete = False

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._settings.max_url_bytes:
            raise self._refused(
                URITooLong(f"the URL has more than {self._settings.max_url_bytes} bytes (server.max_url_bytes)")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: it must not change a request that was already admitted
        super().on_header(name, value)
        if len(self.headers) > self._settings.max_header_count:
            most = self._settings.max_header_count
            raise self._refused(HeadersTooLarge(f"the request has more than {most} headers (server.max_header_count)"))

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > self._settings.max_header_bytes:
            raise self._refused(self._too_large())
        self._in_head = False
        self._has_request = True
        self._overhead = 0
        self._cancel_timer("head")
        self._table.mark_busy(self)
        entry = RequestEntry(self._requests, on_key=lambda: self._table.mark_authenticated(self))
        self.scope[REQUEST_ENTRY] = entry  # type: ignore[typeddict-unknown-key]
        self._entries.append(entry)
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_PIPELINED:
            raise self._refused(InvalidRequest(f"more than {_MOST_PIPELINED} pipelined requests"))

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)
        if self.pipeline:
            self._pipelined_bytes += len(body)
            if self._pipelined_bytes > _MOST_PIPELINED_BYTES:
                raise self._refused(
                    InvalidRequest(f"pipelined requests have more than {_MOST_PIPELINED_BYTES} bytes of bodies")
                )

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._overhead = 0
        self._body_complete = True
        self._cancel_timer("linger")
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_request()

    def on_response_complete(self) -> None:
        if self._entries:
            self._entries.popleft().release()
        if not self.pipeline:
            self._pipelined_bytes = 0
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()
        elif not self.cycle.response_complete:
            self._unset_keepalive_if_required()  # a pipelined request is running
        elif self._body_complete or self._in_head:
            self._wait_for_request()
        elif self.expect_100_continue:
            self._close()  # the client may or may not send the body
        else:
            self._set_timer("linger", _LINGER, self._close)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def _unsupported_upgrade_warning(self) -> None:
        """Upgrade headers are ignored."""

    def send_400_response(self, msg: str) -> None:
        """Called for everything that the parser rejects, including errors from its callbacks."""
        self._refuse(self._refusal or InvalidRequest("this is not a valid HTTP request"))

    # ── internals ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, address: str) -> None:
        """Count a new connection, and close another if necessary. Raises `TooManyConnections`."""
        evicted = self._table.add(self, address)
        self.connections.add(self)
        if evicted is not None:
            evicted.make_room()

    def leave(self) -> None:
        self._table.leave(self)
        self.connections.discard(self)

    def make_room(self) -> None:
        """Close this idle connection, because another one needs its place."""
        self.leave()
        if self.handshake is not None:
            self.handshake.cancel()
        else:
            self.transport.abort()

    def _is_closed(self) -> bool:
        return self._refusal is not None or self.transport.is_closing()

    def _wait_for_request(self) -> None:
        """A response is complete, and another request may follow."""
        self._table.mark_idle(self)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _on_head_timeout(self) -> None:
        if self._overhead:
            seconds = self._settings.header_timeout
            self._refuse(
                RequestTimeout(f"the head of the request was not complete after {seconds:g} s (server.header_timeout)")
            )
        else:
            self._close()

    def _on_write_timeout(self) -> None:
        _log.info("closed a connection: the client does not read its answer", seconds=self._settings.write_timeout)
        self.transport.abort()

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"the headers have more than {self._settings.max_header_bytes} bytes (server.max_header_bytes)"
        )

    def _refused(self, refusal: PaddockError) -> PaddockError:
        """For raising from a callback of the parser, which wraps the error."""
        self._refusal = refusal
        return refusal

    def _refuse(self, error: PaddockError) -> None:
        """Send the error without the application, and read nothing more."""
        self._refusal = error
        self._table.mark_busy(self)
        log_refusal(error)
        if self._has_request and not self.cycle.response_complete:
            self._close()  # another response is being sent
            return
        body = msgspec.json.encode(error_body(error))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {REQUEST_ID.get()}\r\n"
        if error.retry_after is not None:
            head += f"retry-after: {error.retry_after:g}\r\n"
        head += "x-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer("linger", _LINGER, self._close)

    def _refuse_connection(self, error: TooManyConnections) -> None:
        if len(self.connections) > len(self._table) + _MOST_LINGERING:
            self.transport.abort()
        else:
            self._refuse(error)

    def _close(self) -> None:
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        """Buffered data is sent before a connection closes, unless the client does not read it."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._set_timer("close", self._settings.write_timeout, self.transport.abort)

    def _set_timer(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        self._cancel_timer(name)
        self._timers[name] = self.loop.call_later(seconds, act)

    def _cancel_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
