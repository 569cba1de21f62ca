"""The worker's I/O loop: reads frames from the gateway, takes events from other threads, and flushes the outbox."""

from __future__ import annotations

import os
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from paddock.wire.frames import FrameError, encode, reader_for_worker
from paddock.wire.messages import ToGateway, ToWorker
from paddock.worker.outbox import Outbox

_LAST_SEND_TIMEOUT = 2.0
E = TypeVar("E")


class IoLoop(Generic[E]):
    """Calls `on_message` for each message of the gateway and `on_event` for each posted event, on its own thread."""

    def __init__(
        self, sock: socket.socket, on_message: Callable[[ToWorker], None], on_event: Callable[[E], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_event = on_event
        self._reader = reader_for_worker()
        self._events: deque[E] = deque()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self.outbox = Outbox(sock, self._wake)

    def run(self) -> NoReturn:
        while True:
            self.run_once()

    def run_once(self) -> None:
        """Wait until something happens, and handle it."""
        for key, ready in self._selector.select():
            if key.fileobj is not self._sock:
                self._drain_wakeups()
            elif ready & selectors.EVENT_READ:
                self._receive()
        self.handle_events()
        self._flush()

    def post(self, event: E) -> None:
        """Add an event. Any thread may call this; it never blocks."""
        self._events.append(event)
        self._wake()

    def handle_events(self) -> None:
        while self._events:
            self._on_event(self._events.popleft())

    def send_last(self, *messages: ToGateway) -> None:
        """Send what is unsent and then these messages, and wait for the socket. The caller exits afterwards."""
        self._sock.settimeout(_LAST_SEND_TIMEOUT)
        try:
            self._sock.sendall(self.outbox.take() + b"".join(map(encode, messages)))
        except OSError:
            pass  # the gateway has closed the socket or does not read

    def _wake(self) -> None:
        try:
            os.write(self._wake_out, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so the loop wakes anyway

    def _drain_wakeups(self) -> None:
        try:
            os.read(self._wake_in, 4096)
        except BlockingIOError:
            pass

    def _receive(self) -> None:
        try:
            data = self._sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the gateway has exited
            exit_now(0)
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except FrameError as error:
            sys.stderr.write(f"<3>{error}\n")
            exit_now(1)

    def _flush(self) -> None:
        self.outbox.flush()
        if self.outbox.broken:
            exit_now(0)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outbox.blocked else 0)
        if self._selector.get_key(self._sock).events != events:
            self._selector.modify(self._sock, events)


def exit_now(status: int) -> NoReturn:
    """Exit without cleanup: the engine thread may be in native code, and the kernel frees all memory."""
    sys.stderr.flush()
    os._exit(status)
