"""Writes log lines on its own thread, so that logging never waits for the reader of the log.

Lines are buffered up to a limit. Further lines are dropped and counted, and a line reports their number.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 4 * 1024 * 1024
_AT_EXIT: Final = 2.0
"""Seconds to write the buffered lines when the process ends."""


class LogWriter:
    """`report_dropped` makes the line about dropped lines."""

    def __init__(self, descriptor: int, report_dropped: Callable[[int], bytes], most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0
        """Dropped lines since the start."""
        self._descriptor = descriptor
        self._report_dropped = report_dropped
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._held = 0
        """Bytes that are not written yet, including those that are being written."""
        self._unreported = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Does not wait for the reader."""
        with self._changed:
            if self._held + len(line) > self._most_bytes:
                self.dropped += 1
                self._unreported += 1
                return
            self._lines.append(line)
            self._held += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.flush, _AT_EXIT)
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all lines are written, at most this long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._held and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._unreported):
                    self._changed.wait()
                lines, unreported = list(self._lines), self._unreported
                self._lines.clear()
                self._unreported = 0
            self._put(b"".join(lines) + (self._report_dropped(unreported) if unreported else b""))
            with self._changed:
                self._held -= sum(map(len, lines))
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            pass  # a broken pipe of the log does not stop the server


class LogFile(LogWriter):
    """Appends to a file, which only its owner may read: requests may be logged."""

    def __init__(self, path: Path, report_dropped: Callable[[int], bytes]) -> None:
        """Raises `OSError`."""
        self._path = path.absolute()
        super().__init__(self._open(), report_dropped)

    def reopen(self) -> None:
        """Open the file of this name again, which may be a new one. Raises `OSError`."""
        descriptor = self._open()
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
