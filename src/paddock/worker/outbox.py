"""What goes to the gateway, from any thread, without ever waiting for the socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from paddock.wire import ToGateway, encode


class Outbox:
    """Sends at once what the socket takes and keeps the rest, in order, for the I/O thread to `flush`."""

    def __init__(self, sock: socket.socket, on_blocked: Callable[[], None]) -> None:
        self._sock = sock
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
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
                return
            del self._unsent[:sent]
