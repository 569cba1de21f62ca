"""A real llama-server for tests, if the machine has one."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import httpx
import pytest


def llama_server_binary() -> Path:
    binary = os.environ.get("PADDOCK_LLAMA_SERVER")
    if not binary:
        pytest.skip("PADDOCK_LLAMA_SERVER names no llama-server")
    return Path(binary)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class LlamaServer:
    """A context manager: the server is ready on entry and is stopped on exit."""

    def __init__(self, binary: Path, model: Path, *args: str, port: int | None = None, prefix: str = "") -> None:
        self.port = port or free_port()
        self._health = f"{prefix}/health"
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--metrics", "--no-webui", "-t", "1", *args),
        ]
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}

    def __enter__(self) -> LlamaServer:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._environment
        )
        deadline = time.monotonic() + 60
        while not self._ready():
            assert self.process.poll() is None, f"{self._command} ended with {self.process.returncode}"
            assert time.monotonic() < deadline, f"waited 60 s for {self._command}"
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait(30)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}{self._health}", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False
