"""The servers under test: started from a command line or given by a URL. All started processes are ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
import psutil

from paddock_lab.client import Address

_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)
_HOST = "127.0.0.1"
_STOP_SECONDS = 15
# A server runs but has no /health, or requires a key for it.
_RUNNING = (401, 403, 404, 405)
# Errors that waiting does not cure: an unknown host name, an untrusted certificate.
_FINAL = (socket.gaierror, ssl.SSLError)


class StartFailed(Exception):
    """A server did not start. The message ends with its log."""


@dataclass(frozen=True)
class Entrant:
    """A server as given on the command line."""

    name: str
    source: str
    """A command with placeholders, or a URL."""

    @property
    def is_url(self) -> bool:
        return self.source.startswith(("http://", "https://"))

    def command(self, values: Mapping[str, str]) -> list[str]:
        return [_filled(part, values) for part in shlex.split(self.source)]


@dataclass(frozen=True)
class Server:
    entrant: Entrant
    address: Address
    process: psutil.Process | None = None
    """None for a server at a URL, whose processes are unknown."""

    @property
    def name(self) -> str:
        return self.entrant.name

    def family(self) -> list[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)] if self.process else []
        except psutil.NoSuchProcess:
            return []


def entrants(values: tuple[str, ...], unnamed: str) -> list[Entrant]:
    found = []
    for number, value in enumerate(values, 1):
        named = _NAMED.fullmatch(value)
        name, source = (named[1], named[2]) if named else (unnamed if number == 1 else f"{unnamed}{number}", value)
        found.append(Entrant(name, source.strip()))
    return found


@contextmanager
def running(entrant: Entrant, values: Mapping[str, str], start_seconds: float, api_key: str = "") -> Iterator[Server]:
    if entrant.is_url:
        server = Server(entrant, replace(Address.of(entrant.source), api_key=api_key))
        _wait_until_healthy(server, None, start_seconds)
        yield server
        return
    port = _free_port()
    command = entrant.command({**values, "python": sys.executable, "port": str(port)})
    with (
        _interrupted_by_sigterm(),
        tempfile.NamedTemporaryFile(prefix=f"paddock-lab-{entrant.name}-", suffix=".log") as log,
    ):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        server = Server(entrant, Address(_HOST, port, api_key=api_key), psutil.Process(process.pid))
        try:
            try:
                _wait_until_healthy(server, process, start_seconds)
            except StartFailed as failure:
                raise StartFailed(f"{failure}\n{_tail(Path(log.name))}") from None
            yield server
        finally:
            _stop(server, process)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM acts like Ctrl-C, unless something else handles it, so that no server is left."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def resident_bytes(server: Server) -> list[int]:
    """Resident memory of each process of the server."""
    return [process.memory_info().rss for process in server.family()]


def processor_seconds(server: Server) -> float:
    used = 0.0
    for process in server.family():
        try:
            used += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            pass  # it ended in the meantime
    return used


def machine_processor_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _filled(part: str, values: Mapping[str, str]) -> str:
    # Not str.format: a command may contain other braces, such as JSON.
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", value)
    return part


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    """Prints the reason for waiting on stderr if the server is at a URL, because it should be running already."""
    deadline = time.monotonic() + seconds
    url, reported = server.address.url("/health"), ""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError) as failure:
            if isinstance(failure, urllib.error.HTTPError) and failure.code in _RUNNING:
                return
            if process and process.poll() is not None:
                raise StartFailed(f"{server.name} ended with {process.returncode}") from None
            reason = getattr(failure, "reason", failure)
            if isinstance(reason, _FINAL):
                raise StartFailed(f"{server.name} cannot be reached at {url}: {reason}") from None
            if (left := deadline - time.monotonic()) <= 0:
                raise StartFailed(f"{server.name} did not answer {url} within {seconds:g} s: {failure}") from None
            if process is None and reported != str(failure):
                reported = str(failure)
                click.echo(
                    f"{server.name} does not answer {url}: {failure}; trying for {left:.0f} s more (--start-timeout)",
                    err=True,
                )
            time.sleep(0.01)


def _stop(server: Server, process: subprocess.Popen[bytes]) -> None:
    family = server.family()
    _signal_group(process.pid, signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=_STOP_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    # A worker may be in another process group.
    for straggler in left:
        try:
            straggler.kill()
        except psutil.NoSuchProcess:
            pass  # it ended in the meantime
    process.wait(_STOP_SECONDS)


def _signal_group(group: int, sign: signal.Signals) -> None:
    try:
        os.killpg(group, sign)
    except ProcessLookupError:
        pass  # all of it has ended


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
