"""A real Ray cluster of two nodes on this machine, each with a loopback address of its own, as `ray start` makes it."""

from __future__ import annotations

import json
import os
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

_HEAD, _SECOND = "127.0.0.2", "127.0.0.3"
"""Not 127.0.0.1, which Ray takes for a mistake and replaces by the machine's own address."""


_IMPATIENT = {f"RAY_SERVE_{who}_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1" for who in ("REPLICA", "HANDLE")}
"""Loads are told each second instead of every ten."""


class Cluster:
    """Two nodes with two CPUs each. Nothing is left of them afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"{_HEAD}:{free_port()}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        # Ray's sockets lie below it, and their paths must not be long.
        self._temp = tempfile.TemporaryDirectory(prefix="ray-")

    def __enter__(self) -> Cluster:
        port = self.address.rpartition(":")[2]
        try:
            self._start("--head", "--port", port, "--node-ip-address", _HEAD, "--include-dashboard=false",
                        "--temp-dir", self._temp.name)  # fmt: skip
            wait_for(lambda: _listens(self.address), 60, "the head node")
            self._start("--address", self.address, "--node-ip-address", _SECOND)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for node in reversed(self._nodes):
            kill(node)
        self._temp.cleanup()

    def _start(self, *options: str) -> None:
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", "--num-cpus", "2",
            "--memory", str(2**33), "--object-store-memory", str(100 * 2**20), *options,
        ]  # fmt: skip
        with (self.folder / "nodes.log").open("ab") as log:
            node = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=os.environ | _IMPATIENT
            )
        self._nodes.append(node)

    def lose_second_node(self) -> None:
        """As if its machine were gone: every process at once, without a word."""
        kill(self._nodes.pop())

    def paddock(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "paddock", "cluster", *arguments, "--address", self.address],
            capture_output=True, text=True, timeout=100, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def deploy(self, models: dict[str, Any], **cluster: Any) -> str:
        settings = {
            "server": {"port": self.port},
            "model_manager": {"models": models},
            "cluster": {"proxies": "head_only", **cluster},
        }
        (self.folder / "cluster.json").write_text(json.dumps(settings), "utf-8")
        return self.paddock("deploy", "--config", "cluster.json")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def replicas(self, model: str) -> list[dict[str, Any]]:
        """As a gateway sees them."""
        models = httpx.get(f"{self.url}/admin/status", timeout=60).json()["models"]
        (found,) = [one for one in models if one["name"] == model]
        replicas: list[dict[str, Any]] = found["replicas"]
        return replicas


def kill(node: subprocess.Popen[bytes]) -> None:
    try:
        everything = psutil.Process(node.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        everything = []
    node.kill()
    for process in everything:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    node.wait(30)
    psutil.wait_procs(everything, timeout=30)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0
