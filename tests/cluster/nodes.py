"""A real Ray cluster of two nodes on this machine, and `paddock cluster` on it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

from tests.server import wait_for

TOKEN = "0123456789abcdef" * 4
_ENVIRONMENT = {
    # As in deploy/kuberay: without it anyone who reaches a node's ports can run code there.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # see two_nodes.py
    "RAY_USAGE_STATS_ENABLED": "0",
    # By default Ray runs its workers at nice 15, so beside other tests they hardly ran.
    "RAY_worker_niceness": "0",
    # Report loads every second instead of every ten.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}
_ADDRESS = re.compile(r"^address: (\S+)$", re.MULTILINE)


class Cluster:
    """Two nodes with two CPUs each. All their processes end on exit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = ""
        # Ray's sockets are below it, and the length of their paths is limited.
        self._temp = tempfile.TemporaryDirectory(prefix="ray-")

    def __enter__(self) -> Cluster:
        with self._log.open("ab") as log:
            self._nodes = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.two_nodes", self._temp.name],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=os.environ | _ENVIRONMENT,
            )  # fmt: skip
        try:
            wait_for(lambda: self._nodes.poll() is not None or _ADDRESS.search(self._output()), 90, "two nodes")
            found = _ADDRESS.search(self._output())
            assert found is not None, self._output()
            self.address = found[1]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        everything = psutil.Process(self._nodes.pid).children(recursive=True)
        assert self._nodes.stdin is not None
        self._nodes.stdin.close()
        try:
            self._nodes.wait(30)
        except subprocess.TimeoutExpired:
            self._nodes.kill()
        for process in psutil.wait_procs(everything, timeout=10)[1]:
            process.send_signal(signal.SIGKILL)
        self._temp.cleanup()

    def lose_second_node(self) -> None:
        assert self._nodes.stdin is not None
        self._nodes.stdin.write(b"lose\n")
        self._nodes.stdin.flush()

    def paddock(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "paddock", "cluster", *arguments, "--address", self.address],
            capture_output=True, text=True, timeout=250, cwd=self.folder,
            env=os.environ | _ENVIRONMENT | {"RAY_AUTH_TOKEN": token},
        )  # fmt: skip

    def deploy(self, models: dict[str, Any], data_dir: Path | None = None, **cluster: Any) -> str:
        settings = {
            "server": {"port": self.port} | ({"data_dir": str(data_dir)} if data_dir is not None else {}),
            "model_manager": {"models": models},
            "cluster": {"proxies": "head_only", **cluster},
        }
        (self.folder / "cluster.json").write_text(json.dumps(settings), "utf-8")
        return self.paddock("deploy", "--config", "cluster.json")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=200)

    def replicas(self, model: str) -> list[dict[str, Any]]:
        """As reported by a gateway."""
        models = httpx.get(f"{self.url}/admin/status", timeout=200).json()["models"]
        (found,) = [one for one in models if one["name"] == model]
        replicas: list[dict[str, Any]] = found["replicas"]
        return replicas

    @property
    def _log(self) -> Path:
        return self.folder / "nodes.log"

    def _output(self) -> str:
        return self._log.read_text("utf-8", "replace")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
