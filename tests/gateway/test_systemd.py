"""What systemd is told, by a real server, on a real datagram socket."""

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


class _Systemd:
    """The end of the socket that systemd would hold."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(30)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def close(self) -> None:
        self._socket.close()

    def hear(self) -> dict[str, str]:
        lines = self._socket.recv(4096).decode().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def hear_of(self, name: str) -> dict[str, str]:
        """The next message about this; what comes before it is about something else."""
        while name not in (heard := self.hear()):
            pass
        return heard


@pytest.fixture(params=["file", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "file" else f"@paddock-{secrets.token_hex(8)}"


@pytest.fixture
def systemd(address: str) -> Iterator[_Systemd]:
    told = _Systemd(address)
    yield told
    told.close()


def test_a_life_as_systemd_hears_of_it(systemd: _Systemd, address: str) -> None:
    watchdog = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
    with Server("-m", "fake:", env=watchdog) as server:
        assert systemd.hear_of("READY") == {"READY": "1", "STATUS": f"Listening on {server.url}"}
        for _ in range(3):
            assert systemd.hear_of("WATCHDOG") == {"WATCHDOG": "1"}
        server.process.send_signal(signal.SIGHUP)
        assert systemd.hear_of("RELOADING")["MONOTONIC_USEC"].isdigit()
        assert systemd.hear_of("READY") == {"READY": "1"}
        server.chat("hello")
        (worker,) = server.workers()
        inherited = Path(f"/proc/{worker}/environ").read_bytes()
        assert b"NOTIFY_SOCKET" not in inherited and b"WATCHDOG_USEC" not in inherited
        server.process.send_signal(signal.SIGTERM)
        assert systemd.hear_of("STOPPING")["STOPPING"] == "1"


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
def test_only_a_watch_that_is_meant_for_us_is_kept(given: dict[str, str], watched: float | None) -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "HOME": "/", **given}
    assert Notifier.from_environment(environ)._watchdog == watched
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("tell", [Notifier.ready, Notifier.reloading, Notifier.stopping])
def test_nobody_there_is_no_misfortune(tell: Callable[[Notifier], None], tmp_path: Path) -> None:
    tell(Notifier())
    tell(Notifier(str(tmp_path / "gone")))
