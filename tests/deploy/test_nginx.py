"""A real nginx in front of a real server: with the few lines that people know, and with our own sample."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import httpx
import pytest

from tests.certificates import make_certificate
from tests.server import Server, chat_body, events, wait_for

SAMPLE = Path(__file__).parents[2] / "deploy" / "nginx" / "paddock.conf"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = [pytest.mark.full, pytest.mark.skipif(NGINX is None, reason="there is no nginx here")]

# As it stands in a guide for llama-server; only where it listens, and where the server is, are this test's.
KNOWN = """
http {
    limit_req_zone $binary_remote_addr zone=llama:10m rate=10r/s;

    server {
        location / {
            limit_req zone=llama burst=20 nodelay;
            proxy_pass http://llama-server:8080;
        }
    }
}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
# A server whose answers take ten seconds, so that what comes before the end can be told from what comes at it.
_SLOW = "fake:delay=1"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", _SLOW) as server:
        server.chat("hello", max_tokens=1)
        yield server


def test_the_lines_that_people_know(tmp_path: Path, server: Server) -> None:
    port = _free_port()
    with _nginx(tmp_path, _replaced(KNOWN, {
        "http://llama-server:8080": server.url, "server {": f"server {{ listen 127.0.0.1:{port};",
    }), port):  # fmt: skip
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            _streams(client, server)
            assert _refusal(client, "/v1/models").status_code == 503


@pytest.fixture
def sample(tmp_path: Path, server: Server) -> Iterator[httpx.Client]:
    certificate, key = make_certificate(tmp_path / "tls")
    plain, secure = _free_port(), _free_port()
    text = _replaced(SAMPLE.read_text(), {
        "listen 80;": f"listen 127.0.0.1:{plain};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{secure} ssl http2;",
        "/etc/letsencrypt/live/llm.example.org/fullchain.pem": str(certificate),
        "/etc/letsencrypt/live/llm.example.org/privkey.pem": str(key),
        "server 127.0.0.1:8080;": f"server {server.url.removeprefix('http://')};",
    })  # fmt: skip
    with _nginx(tmp_path, f"http {{\n{text}\n}}", secure):
        trusted = ssl.create_default_context(cafile=certificate)
        with httpx.Client(base_url=f"https://localhost:{secure}", verify=trusted, timeout=60) as client:
            moved = httpx.get(
                f"http://127.0.0.1:{plain}/v1/models?x=1", headers={"Host": "llm.example.org"}, timeout=200
            )
            assert (moved.status_code, moved.headers["location"]) == (301, "https://llm.example.org/v1/models?x=1")
            yield client


def test_our_sample(sample: httpx.Client, server: Server) -> None:
    _streams(sample, server)
    refused = _refusal(sample, "/v1/models")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert {sample.get("/health").status_code for _ in range(40)} == {200}, "who watches is not counted"
    assert sample.get("/admin/status").status_code == 200, "from loopback"


def test_the_page_may_ask_from_where_it_was_opened(sample: httpx.Client) -> None:
    page = sample.get("/", headers={"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"})
    assert page.status_code == 200 and "<html" in page.text
    here = str(sample.base_url).rstrip("/")  # with its port, as a browser writes it
    told = {"Origin": here, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert sample.post("/tokenize", json={"content": "hay"}, headers=told).status_code == 200
    for stranger in ("https://evil.example", here.replace("localhost", "evil.example")):
        refused = sample.post("/tokenize", json={"content": "hay"}, headers={**told, "Origin": stranger})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_a_client_that_leaves_nginx_leaves_the_server(sample: httpx.Client, server: Server) -> None:
    with sample.stream("POST", "/v1/chat/completions", json=_question()) as response:
        reading = events(response)  # kept: the connection closes with it
        next(reading)  # The role, which is told before the answer has a slot.
        wait_for(lambda: _busy(server), 30, "the answer to begin")
    wait_for(lambda: not _busy(server), 30, "the cancelled answer to end")


def _streams(client: httpx.Client, server: Server) -> None:
    """The first words are there while the last are not."""
    with client.stream("POST", "/v1/chat/completions", json=_question()) as response:
        assert response.status_code == 200
        stream = events(response)
        for _ in range(3):
            next(stream)
        assert _busy(server)
    wait_for(lambda: not _busy(server), 30, "the answer to end")


def _question() -> dict[str, object]:
    return chat_body("Tell me about horses.", max_tokens=10, stream=True)


def _busy(server: Server) -> bool:
    return any(slot["is_processing"] for slot in server.client.get("/slots").json())


def _refusal(client: httpx.Client, path: str) -> httpx.Response:
    """The first answer that is not the server's, of many requests at once."""
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(client.get, repeat(path, 200)))
    assert answers[0].status_code == 200
    return next(answer for answer in answers if answer.status_code != 200)


def _replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@contextmanager
def _nginx(folder: Path, http: str, port: int) -> Iterator[None]:
    places = "".join(f"{name}_temp_path {folder / name};\n" for name in _TEMPORARY)
    http = http.replace("http {", f"http {{\naccess_log off;\n{places}", 1)
    file = folder / "nginx.conf"
    file.write_text(f"daemon off;\npid {folder / 'pid'};\nerror_log stderr;\nevents {{}}\n{http}")
    assert NGINX is not None
    process = subprocess.Popen(
        [NGINX, "-p", str(folder), "-e", "stderr", "-c", str(file)], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: process.poll() is not None or _listens(port), 30, "nginx to listen")
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
