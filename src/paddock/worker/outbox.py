"""Messages to the gateway, sent from any thread without blocking on the socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from paddock.wire.frames import encode
from paddock.wire.messages import ToGateway

_LOW_WATER = 1 << 18
"""Unsent bytes below which `send_behind` sends."""


class Outbox:
    """Sends what the socket accepts and keeps the rest in order. The I/O thread calls `flush` for it."""

    def __init__(self, sock: socket.socket, on_blocked: Callable[[], None]) -> None:
        self._sock = sock
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._unsent = bytearray()
        self.broken = False
        """The connection is closed."""

    @property
    def blocked(self) -> bool:
        return bool(self._unsent)

    def send(self, message: ToGateway) -> None:
        frame = encode(message)
        with self._lock:
            waiting = bool(self._unsent)
            self._unsent += frame
            if waiting:
                return
            self._push()
            blocked = bool(self._unsent)
        if blocked:
            self._on_blocked()

    def send_behind(self, message: ToGateway) -> None:
        """Block until little is unsent, then send. For large messages, so that other messages do not wait for them."""
        with self._lock:
            self._drained.wait_for(lambda: self.broken or len(self._unsent) < _LOW_WATER)
        self.send(message)

    def flush(self) -> None:
        with self._lock:
            self._push()

    def take(self) -> bytes:
        """Remove and return all unsent bytes."""
        with self._lock:
            unsent, self._unsent = bytes(self._unsent), bytearray()
        return unsent

    def _push(self) -> None:
        while self._unsent and not self.broken:
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self._drained.notify_all()
                return
            del self._unsent[:sent]
            if len(self._unsent) < _LOW_WATER:
                self._drained.notify_all()
