"""TLS handshakes: each has a time limit and counts as a connection from the moment it is accepted.

The event loop's own server reports a connection only after its handshake, so connections are accepted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

import structlog

from paddock.errors import TooManyConnections
from paddock.gateway.http.connection import UNIX_CLIENT, Connection, is_unix
from paddock.gateway.http.connection_slots import network_of

_log = structlog.get_logger(__name__)
_PAUSE = 0.1
"""Seconds until the next attempt after the system had no resources for a connection."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class TLSListener:
    """Accepts connections on a listening socket until it is closed. It looks like an asyncio server to uvicorn."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, timeout: float, make: Callable[[], Connection]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._context = context
        self._timeout = timeout
        self._make = make
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except OSError as error:
                exhausted = error.errno in _EXHAUSTED  # otherwise the client has disconnected already
                if exhausted:
                    _log.warning("cannot accept a connection", reason=error.strerror)
                await asyncio.sleep(_PAUSE if exhausted else 0)
                continue
            try:
                connection = self._make()
                connection.enter(network_of(UNIX_CLIENT if is_unix(sock) else address[0]))
                connection.handshake = loop.create_task(self._shake_hands(sock, connection))
            except TooManyConnections:
                sock.close()  # the client cannot read an answer before the handshake
            except Exception:  # the listener must survive any error
                _log.exception("a connection failed")
                sock.close()

    async def _shake_hands(self, sock: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._context, ssl_handshake_timeout=self._timeout
            )
        except OSError as error:  # includes ssl.SSLError and timeouts
            _log.debug("no TLS handshake", reason=str(error))
        finally:
            if connection.handshake is not None:  # not complete
                connection.leave()
