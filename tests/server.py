"""A real `paddock serve` process for tests, on a free port, and nothing left behind afterwards."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.forking import ForkedProcess

_URL = re.compile(r"on ((?:https?|unix)://\S+)")


class Server:
    """Starts on entering and is listening then; stops on leaving, by SIGTERM, and by SIGKILL if that fails.

    With `lazy`, which saves a worker where none is needed, nothing is loaded before the first request; without it the
    server does as it does by itself.
    """

    def __init__(
        self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None, lazy: bool = True
    ) -> None:
        self._args = args
        # A short grace period for tests that stop a busy server. One thread per model: the other tests use the other
        # core, and threads that wait for each other on shared cores are many times slower (docs/lab.md).
        usual = {
            "PADDOCK_SERVER__SHUTDOWN_GRACE": "10",
            "PADDOCK_MODEL_MANAGER__N_THREADS": "1",
            "HF_ENDPOINT": "http://127.0.0.1:9",  # no test reaches the hub
            **os.environ,
        }
        # Two servers cannot use one data folder, and the developer's own batches must not run in tests.
        self._data = Path(tempfile.gettempdir()) / f"paddock-data-{secrets.token_hex(8)}"
        usual["XDG_DATA_HOME"] = str(self._data)
        self._env = {**usual, **({"PADDOCK_MODEL_MANAGER__LAZY": "true"} if lazy else {}), **(env or {})}
        self._cwd = cwd
        self.output: list[str] = []
        self.url = ""

    def __enter__(self) -> Server:
        self.process = ForkedProcess(["serve", "--port", "0", *self._args], self._env, self._cwd)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        wait_for(lambda: self.url or self.process.poll() is not None, 30, "the server to listen")
        assert self.url, self.output
        self.client = client_of(self.url)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        self.stop()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        try:
            return self.process.wait(100)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # it writes the stacks of its threads
            self._reading.join(10)
            self.process.kill()
            raise AssertionError("the server did not stop:\n" + "\n".join(self.output[-200:])) from None
        finally:
            self._reading.join(100)
            shutil.rmtree(self._data, ignore_errors=True)

    def chat(self, text: str, **options: Any) -> dict[str, Any]:
        response = self.client.post("/v1/chat/completions", json=chat_body(text, **options))
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    def wait_for_line(self, *texts: str) -> str:
        """The first line of the log with all these texts. It may arrive after the response that it is about."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [line for line in list(self.output) if all(text in line for text in texts)]
            return bool(found)

        wait_for(look, 30, f"a line in the log with {texts}")
        return found[0]

    def workers(self) -> list[int]:
        return child_workers(self.process.pid)

    def _read(self) -> None:
        with self.process.stdout as output:
            for line in output:
                self.output.append(line.rstrip())
                if not self.url and (match := _URL.search(line)):
                    self.url = match[1]


def client_of(url: str) -> httpx.Client:
    """A client of a server at this URL, which may be a unix socket."""
    if url.startswith("unix://"):
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix://"))
        return httpx.Client(base_url="http://localhost", transport=transport, timeout=200)
    # Without certificates, a client is made in 0.4 ms instead of 39.
    return httpx.Client(base_url=url, timeout=200, verify=url.startswith("https"))


def chat_body(text: str, **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **options}


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """The (event, data) pairs of a server-sent event stream."""
    name = "message"
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")
            name = "message"


def child_workers(parent: int) -> list[int]:
    """The worker processes that this process has started, from the process table."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"PPid:\t{parent}\n" in status and b"paddock.worker" in command:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait on a condition of another process, the only kind of waiting these tests do. So long it may take where
    nothing else runs; a busy machine is given five times as long.
    """
    deadline = time.monotonic() + 5 * seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {5 * seconds} s for {what}"
        time.sleep(0.01)
