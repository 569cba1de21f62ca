"""Writes lines on a thread of its own, so that whoever logs never waits for whoever reads the log.

What is not taken is kept up to a limit. Lines beyond it are dropped and counted, and a line says how many.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MOST_BYTES: Final = 4 * 1024 * 1024
_AT_EXIT: Final = 2.0
"""Seconds for what is left when the process ends."""


class LogWriter:
    """`tell_dropped` makes the line about dropped lines."""

    def __init__(self, descriptor: int, tell_dropped: Callable[[int], bytes], most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0
        """Lines, since the start."""
        self._descriptor = descriptor
        self._tell_dropped = tell_dropped
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._held = 0
        """Bytes that are not written yet, those that are being written among them."""
        self._untold = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Never waits for the reader."""
        with self._changed:
            if self._held + len(line) > self._most_bytes:
                self.dropped += 1
                self._untold += 1
                return
            self._lines.append(line)
            self._held += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.flush, _AT_EXIT)
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all is written, so long at most."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._held and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._untold):
                    self._changed.wait()
                lines, untold = list(self._lines), self._untold
                self._lines.clear()
                self._untold = 0
            self._put(b"".join(lines) + (self._tell_dropped(untold) if untold else b""))
            with self._changed:
                self._held -= sum(map(len, lines))
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            pass  # a log that nobody takes any more, as of a pipe that broke, stops no server
