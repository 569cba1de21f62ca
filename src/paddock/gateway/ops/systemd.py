"""Notifies systemd as in sd_notify(3): datagrams of `NAME=value` lines to its socket."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

import structlog

_log = structlog.get_logger(__name__)
_MICROSECONDS = 1_000_000


class Notifier:
    """Does nothing without a socket."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = address
        self._watchdog = watchdog

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Removes the variables, which are not meant for workers."""
        address = environ.pop("NOTIFY_SOCKET", None)
        period, process = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = period.isdigit() and int(period) > 0 and process in ("", str(os.getpid()))
        return cls(address, int(period) / _MICROSECONDS if watched else None)

    def ready(self, *, listening_on: str | None = None) -> None:
        """Called with an address at the start, and without one after each `reloading`."""
        self._notify("READY=1", *(() if listening_on is None else (f"STATUS=Listening on {listening_on}",)))

    def reloading(self) -> None:
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._notify("STOPPING=1", "STATUS=Finishing running requests")

    async def keep_alive(self) -> None:
        """Notify the watchdog twice in each period, from the event loop."""
        while self._address is not None and self._watchdog is not None:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / 2)

    def _notify(self, *lines: str) -> None:
        if self._address is None:
            return
        # A name that starts with @ is an abstract socket, which starts with a zero byte.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode(), address)
        except OSError as error:  # the server works without it
            _log.warning("cannot notify systemd", what=lines[0], error=error.strerror)
