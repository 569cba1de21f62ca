"""A worker's process, its socket and its output."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine
from typing import IO, Protocol, cast

import structlog

from paddock.errors import ModelLoadFailed
from paddock.fleet.process.child import Child
from paddock.fleet.process.environment import environment
from paddock.fleet.process.output import parse_line
from paddock.types import EngineOptions
from paddock.wire.frames import FrameError, encode, reader_for_gateway
from paddock.wire.messages import ToGateway, ToWorker

_log = structlog.get_logger(__name__)
_EXIT_WAIT = 2.0
_OUTPUT_LINES = 40


class Listener(Protocol):
    def on_messages(self, messages: list[ToGateway]) -> None: ...
    def on_protocol_error(self, error: FrameError) -> None: ...
    async def on_closed(self) -> None:
        """The socket is closed, so the process has ended or is ending."""


class Connection(asyncio.Protocol):
    def __init__(self, cpu_lock_file: IO[bytes], listener: Listener) -> None:
        self._cpu_lock_file = cpu_lock_file
        self._listener = listener
        self.model = ""
        """For the log."""
        self.output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        """The last lines of its output."""
        self.killed = False
        self._process: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = reader_for_gateway()
        self._output_reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def spawn(self, options: EngineOptions, *, ahead: bool) -> None:
        """Start the process; `ahead`: before its model is known."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        lock = self._cpu_lock_file.fileno()
        try:
            with theirs:
                # -P: a file in the working directory must not shadow a module.
                command = [sys.executable, "-P", "-m", "paddock.worker", str(theirs.fileno()), str(lock)]
                self._process = Child(
                    [*command, "ahead"] if ahead else command,
                    pass_fds=(theirs.fileno(), lock),
                    env=environment(options),
                )
            self._output_reader = self._start_task(self._read_output())
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except OSError as error:
            ours.close()
            raise ModelLoadFailed(f"cannot start a worker: {error}") from error
        except BaseException:  # cancelled
            ours.close()
            raise

    def send(self, message: ToWorker) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def kill(self) -> None:
        self.killed = True
        if self._process is not None:
            self._process.kill()

    async def exit_status(self, more_seconds: float = 0.0) -> int:
        """Wait for the process to end; kill it if it takes too long."""
        assert self._process is not None, "the process was started"
        try:
            return await asyncio.wait_for(self._process.wait(), _EXIT_WAIT + more_seconds)
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    async def read_rest_of_output(self) -> None:
        if self._output_reader is not None:
            await asyncio.wait({self._output_reader}, timeout=_EXIT_WAIT)

    async def close(self, more_seconds: float = 0.0) -> None:
        """Wait for the process to end, and for all tasks. It may take so many seconds more than usual."""
        if self._process is None:
            return
        await self.exit_status(more_seconds)
        if self._transport is not None:
            self._transport.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            self._listener.on_messages(self._reader.feed(data))
        except FrameError as error:
            self._listener.on_protocol_error(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._start_task(self._listener.on_closed())

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read_output(self) -> None:
        assert self._process is not None, "the process was started"
        while line := await _read_line(self._process.output):
            level, message, fields = parse_line(line.decode("utf-8", "replace").rstrip())
            self.output.append(message)
            getattr(_log, level)(message, model=self.model, pid=self.pid, **fields)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or the first part of one that exceeds the reader's limit."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


def describe_exit(status: int) -> str:
    """An exit status as text: `exit status 1` or a signal's name."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
