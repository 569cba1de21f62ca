"""A child process whose output and end are awaited on the event loop.

uvloop starts processes by a fork that runs Python code: what libraries registered with `os.register_at_fork`. If it
needs a lock that another thread held, the fork never ends, and the event loop waits for it forever. `subprocess` runs
no Python code in the new process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

_PIECE = 1 << 16


class Child:
    def __init__(self, arguments: Sequence[str], *, pass_fds: Sequence[int], env: Mapping[str, str]) -> None:
        """Start it in a session of its own, so that Ctrl-C does not reach it. Raises `OSError`."""
        self._loop = asyncio.get_running_loop()
        self._process = subprocess.Popen(
            arguments,
            pass_fds=pass_fds,
            env=env,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None, "it is a pipe"
        self._pipe = self._process.stdout
        self.output = asyncio.StreamReader()
        """What it writes to stdout and stderr."""
        # Not `connect_read_pipe`: uvloop closes the descriptor, and then the file once more.
        os.set_blocking(self._pipe.fileno(), False)
        self._loop.add_reader(self._pipe.fileno(), self._read)
        self._ended: asyncio.Future[int] = self._loop.create_future()
        try:
            threading.Thread(target=self._collect, name="child", daemon=True).start()
        except RuntimeError as error:  # there may be no more threads
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            self.kill()
            self._process.wait()
            raise OSError(str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """The exit status; the negative number of the signal that ended it."""
        return await asyncio.shield(self._ended)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _PIECE)
        except BlockingIOError:
            return
        if data:
            self.output.feed_data(data)
        else:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            self.output.feed_eof()

    def _collect(self) -> None:
        status = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set_result, status)
