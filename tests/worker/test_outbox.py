"""Messages to the gateway: small ones do not wait for large ones."""

from __future__ import annotations

import socket
import threading

from paddock.wire.frames import reader_for_gateway
from paddock.wire.messages import Beat, ToGateway, TokensPart
from paddock.worker.outbox import Outbox


def test_small_messages_do_not_wait_for_large_ones() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outbox = Outbox(ours, lambda: None)
        size, count = 1 << 18, 64
        done = threading.Event()

        def send_large() -> None:
            for number in range(count):
                outbox.send_behind(TokensPart(number, bytes(size)))
            done.set()

        threading.Thread(target=send_large, daemon=True).start()
        while not outbox.blocked:
            done.wait(0.01)
        outbox.send(Beat(1.0))
        assert len(outbox._unsent) < 3 * size, "a new message has few bytes before it"
        reader = reader_for_gateway()
        seen: list[ToGateway] = []
        while len(seen) < count + 1:
            seen += reader.feed(theirs.recv(1 << 20))
            outbox.flush()
        assert done.wait(300)
        assert sum(isinstance(message, Beat) for message in seen[: count // 2]) == 1, "it was sent before most of them"
