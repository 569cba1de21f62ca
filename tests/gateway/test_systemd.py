"""The notifications of a server to systemd, on a datagram socket."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.gateway.ops.systemd import Notifier
from tests.server import Server
from tests.tiers import full


class _Systemd:
    """The receiving end of the socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(30)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> dict[str, str]:
        lines = self._socket.recv(4096).decode().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def receive_until(self, name: str) -> dict[str, str]:
        """The next message with this name. Skips other messages."""
        while name not in (heard := self.receive()):
            pass
        return heard


@pytest.fixture(params=["file", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "file" else f"@paddock-{secrets.token_hex(8)}"


@pytest.fixture
def systemd(address: str) -> Iterator[_Systemd]:
    receiver = _Systemd(address)
    yield receiver
    receiver.close()


@full
def test_ready_reload_watchdog_and_stop_are_reported(systemd: _Systemd, address: str) -> None:
    watchdog = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
    with Server("-m", "fake:", env=watchdog) as server:
        assert systemd.receive_until("READY") == {"READY": "1", "STATUS": f"Listening on {server.url}"}
        for _ in range(3):
            assert systemd.receive_until("WATCHDOG") == {"WATCHDOG": "1"}
        server.process.send_signal(signal.SIGHUP)
        assert systemd.receive_until("RELOADING")["MONOTONIC_USEC"].isdigit()
        assert systemd.receive_until("READY") == {"READY": "1"}
        server.chat("hello")
        (worker,) = server.workers()
        inherited = Path(f"/proc/{worker}/environ").read_bytes()
        assert b"NOTIFY_SOCKET" not in inherited and b"WATCHDOG_USEC" not in inherited
        server.process.send_signal(signal.SIGTERM)
        assert systemd.receive_until("STOPPING")["STOPPING"] == "1"


def test_a_server_that_the_watchdog_ends_leaves_its_stacks_in_the_log() -> None:
    with Server("-m", "fake:") as server:
        assert server.stop(signal.SIGABRT) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in server.output
        assert any("gateway/server.py" in line for line in server.output)


@pytest.mark.parametrize(
    ("given", "watched"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_of_another_process_is_ignored(given: dict[str, str], watched: float | None) -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "HOME": "/", **given}
    assert Notifier.from_environment(environ)._watchdog == watched
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("tell", [Notifier.ready, Notifier.reloading, Notifier.stopping])
def test_a_missing_socket_is_not_an_error(tell: Callable[[Notifier], None], tmp_path: Path) -> None:
    tell(Notifier())
    tell(Notifier(str(tmp_path / "gone")))
