"""What goes to the gateway, from any thread, without ever waiting for the socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from paddock.wire.frames import encode
from paddock.wire.messages import ToGateway

_LITTLE = 1 << 18
"""Bytes."""


class Outbox:
    """Sends at once what the socket takes and keeps the rest, in order, for the I/O thread to `flush`."""

    def __init__(self, sock: socket.socket, on_blocked: Callable[[], None]) -> None:
        self._sock = sock
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._unsent = bytearray()
        self.broken = False
        """The other side is gone; nothing will ever be sent again."""

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
        """Wait until little is unsent, then send. For threads that send much: what others send must not wait for it."""
        with self._lock:
            self._drained.wait_for(lambda: self.broken or len(self._unsent) < _LITTLE)
        self.send(message)

    def flush(self) -> None:
        with self._lock:
            self._push()

    def take(self) -> bytes:
        """Everything that was not sent, for a last word."""
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
            if len(self._unsent) < _LITTLE:
                self._drained.notify_all()
