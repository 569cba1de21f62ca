"""`paddock` commands as processes, forked from one that has imported the gateway already.

Importing the gateway takes longer than most tests of it. A forked command is the real one in every other respect: its
own process, environment, folder, signals, output and exit status.
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
import tempfile
from pathlib import Path
from typing import IO, Any

_PRELOADED = ("paddock.cli.serve", "paddock.gateway.server", "uvicorn.loops.uvloop", "uvicorn.lifespan.on")
_LARGEST_REQUEST = 1 << 20


class ForkedProcess:
    """A forked command with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, arguments: list[str], env: dict[str, str], cwd: Path | None, stderr: int | None = None) -> None:
        """Errors go to the descriptor `stderr`, by default to the same pipe as the output."""
        request = json.dumps({"arguments": arguments, "env": env, "cwd": str(cwd or Path.cwd())}).encode()
        output, output_of_child = os.pipe()
        self._status, status_of_child = socket.socketpair()
        errors = output_of_child if stderr is None else stderr
        with status_of_child:
            socket.send_fds(_template(), [request], [output_of_child, errors, status_of_child.fileno()])
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
            raise subprocess.TimeoutExpired("paddock", timeout or 0)
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


def run_command(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `paddock` with these arguments to its end."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = ForkedProcess(list(arguments), dict(os.environ) if env is None else env, cwd, errors.fileno())
        with process.stdout as output:
            told = output.read()
        status = process.wait(100)
        errors.seek(0)
        return subprocess.CompletedProcess(["paddock", *arguments], status, told, errors.read())


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
    """Fork for each request. Returns the arguments in a forked command, and None in the template when it is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            return _become_command(json.loads(request), *fds)
        for fd in fds:
            os.close(fd)


def _become_command(request: dict[str, Any], output: int, errors: int, status: int) -> list[str]:
    """Fork once more: the first process reports how the second one, the command, ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this one too, and the status must still be told
        os.close(output)
        os.close(errors)
        os.write(status, b"%d\n" % pid)
        _, code = os.waitpid(pid, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
        os._exit(0)
    os.close(status)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    return list(request["arguments"])


def _main(descriptor: int) -> None:
    for name in _PRELOADED:
        __import__(name)
    # The first application imports more, and fills caches.
    from paddock.config import Settings
    from paddock.fleet import Catalogue, Fleet, Rules
    from paddock.gateway.app import create_app

    create_app(Settings(), Fleet(Catalogue([]), Rules()), Settings)
    gc.freeze()
    arguments = _serve_forks(socket.socket(fileno=descriptor))
    if arguments is not None:
        from paddock.cli import main

        sys.argv = ["paddock", *arguments]
        main(arguments)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
