"""The server listens on several addresses and on unix sockets."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ServerSettings
from paddock.gateway.http.listening import listening
from paddock.hosts import address_url, is_loopback, is_socket_path
from tests.certificates import make_certificate
from tests.forking import run_command
from tests.server import Server, client_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    with Server("-m", "fake:", "--host", f"127.0.0.1,{place / 'a.sock'}", "--host", "::1") as server:
        yield server


def _urls(server: Server) -> list[str]:
    line = next(line for line in server.output if line.startswith("Serving"))
    return re.findall(r"(?:http|unix)://\S+", line.partition("  page:")[0])


def test_every_address_answers(server: Server, place: Path) -> None:
    urls = _urls(server)
    port = server.url.rpartition(":")[2]
    assert urls == [f"http://127.0.0.1:{port}", f"unix://{place / 'a.sock'}", f"http://[::1]:{port}"]
    for url in urls:
        with client_of(url) as client:
            assert client.get("/health").status_code == 200
            answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "say: hi"}]})
            assert answer.json()["choices"][0]["message"]["content"] == "hi"


def test_the_commands_reach_a_unix_socket(server: Server, place: Path) -> None:
    done = run_command("ps", "--url", f"unix://{place / 'a.sock'}", cwd=place)
    assert done.returncode == 0 and "NAME" in done.stdout, done.stderr


def test_only_the_owner_and_the_group_may_connect(server: Server, place: Path) -> None:
    assert stat.S_IMODE((place / "a.sock").stat().st_mode) == 0o660


def test_the_mode_can_be_set_and_the_file_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "b.sock"
    with Server("-m", "fake:", "--host", str(path), env={"PADDOCK_SERVER__SOCKET_MODE": "600"}) as server:
        assert server.url == f"unix://{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.client.get("/health").status_code == 200
    assert not path.exists()


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with Server("-m", "fake:", "--host", str(path)) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(20)
        assert path.exists()
        with Server("-m", "fake:", "--host", str(path)) as another:
            assert another.client.get("/health").status_code == 200


def _problem(settings: ServerSettings) -> str:
    with pytest.raises(Exception, match="cannot listen on") as caught, listening(settings):
        pass
    return str(caught.value)


def test_a_file_or_a_used_socket_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "d.sock"
    file.write_text("mine")
    assert "is not a socket" in _problem(ServerSettings(host=str(file)))
    assert file.read_text() == "mine"
    used = ServerSettings(host=str(tmp_path / "e.sock"))
    with listening(used):
        assert "another server listens on it" in _problem(used)
    assert "No such file" in _problem(ServerSettings(host=str(tmp_path / "missing" / "f.sock")))
    assert "too long" in _problem(ServerSettings(host=f"/tmp/{'x' * 200}.sock"))


def test_when_one_address_fails_none_is_used(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "g.sock"
        assert str(port) in _problem(ServerSettings(host=f"{path},127.0.0.1", port=port))
        assert not path.exists()


def test_with_several_addresses_ipv6_is_separate() -> None:
    with listening(ServerSettings(host="0.0.0.0,::", port=0)) as (first, second):
        assert first.sock.getsockname()[1] == second.sock.getsockname()[1]
        assert second.url.startswith("http://[::]:")


def test_several_servers_can_share_a_port() -> None:
    with listening(ServerSettings(port=0, reuse_port=True)) as (first,):
        port = first.sock.getsockname()[1]
        with listening(ServerSettings(port=port, reuse_port=True)) as (second,):
            assert second.url == first.url
        assert "in use" in _problem(ServerSettings(port=port))


def test_tls_on_a_unix_socket(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    path = str(tmp_path / "h.sock")
    with Server("-m", "fake:", "--host", path, "--ssl-key-file", str(key), "--ssl-cert-file", str(certificate)):
        transport = httpx.HTTPTransport(uds=path, verify=ssl.create_default_context(cafile=str(certificate)))
        with httpx.Client(transport=transport, base_url="https://localhost") as client:
            assert client.get("/health").status_code == 200


@given(
    st.lists(st.sampled_from(["127.0.0.1", "0.0.0.0", "::", "localhost", "/run/a.sock", "b.sock", " ::1 "]), min_size=1)
)
def test_lists_of_hosts(hosts: list[str]) -> None:
    settings = ServerSettings(host=",".join(hosts))
    assert len(settings.hosts) == len(set(settings.hosts)) == len({host.strip() for host in hosts})
    assert settings.is_local == all(host.strip() not in ("0.0.0.0", "::") for host in hosts)
    assert all(Path(host).is_absolute() for host in settings.hosts if is_socket_path(host))


@pytest.mark.parametrize("host", ["", ",", "127.0.0.1,", " "])
def test_an_empty_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        ServerSettings(host=host)


def test_urls() -> None:
    assert address_url("::1", 80, tls=True) == "https://[::1]:80"
    assert address_url("localhost", 8080, tls=False) == "http://localhost:8080"
    assert address_url("/run/a b.sock", 0, tls=False) == "unix:///run/a%20b.sock"
    assert is_loopback("/run/a.sock") and not is_loopback("http://a")
