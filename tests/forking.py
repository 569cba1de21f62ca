"""`paddock serve` as a process of its own, forked from one that has imported the gateway already.

Importing the gateway takes longer than most tests of it. A forked server is the real command in every other respect:
its own process, environment, folder, signals, output and exit status.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

_PRELOADED = ("paddock.cli.serve", "paddock.gateway.server", "uvicorn.loops.uvloop", "uvicorn.lifespan.on")
_LARGEST_REQUEST = 1 << 20


class ForkedProcess:
    """A forked command with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, arguments: list[str], env: dict[str, str], cwd: Path | None) -> None:
        request = json.dumps({"arguments": arguments, "env": env, "cwd": str(cwd or Path.cwd())}).encode()
        output, output_of_child = os.pipe()
        self._status, status_of_child = socket.socketpair()
        with status_of_child:
            socket.send_fds(_template(), [request], [output_of_child, status_of_child.fileno()])
        os.close(output_of_child)
        self.stdout: IO[str] = os.fdopen(output, encoding="utf-8", errors="replace")
        self._lines = self._status.makefile("r")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._collect(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._collect(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("paddock serve", timeout or 0)
        return status

    def send_signal(self, sign: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sign)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _collect(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._status.close()
        return self.returncode


_requests: socket.socket | None = None


def _template() -> socket.socket:
    """Where to ask for a fork. The process that does it is started for the first one and ends with this process."""
    global _requests
    if _requests is None:
        _requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        atexit.register(_end, process, _requests)
    return _requests


def _end(process: subprocess.Popen[bytes], requests: socket.socket) -> None:
    requests.close()
    process.wait()


def _serve_forks(requests: socket.socket) -> list[str] | None:
    """Fork for each request. Returns the arguments in a forked server, and None in the template when it is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 2)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            return _become_server(json.loads(request), *fds)
        for fd in fds:
            os.close(fd)


def _become_server(request: dict[str, Any], output: int, status: int) -> list[str]:
    """Fork once more: the first process reports how the second one, the server, ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.close(output)
        os.write(status, b"%d\n" % pid)
        _, code = os.waitpid(pid, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
        os._exit(0)
    os.close(status)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    return list(request["arguments"])


def _main(descriptor: int) -> None:
    for name in _PRELOADED:
        __import__(name)
    gc.freeze()
    arguments = _serve_forks(socket.socket(fileno=descriptor))
    if arguments is not None:
        from paddock.cli import main

        sys.argv = ["paddock", *arguments]
        main(arguments)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
