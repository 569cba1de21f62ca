"""A real nginx in front of several real servers, by path: with the lines that people know, and with our own sample."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import make_certificate
from tests.deploy.test_nginx import NGINX, _free_port, _nginx, _replaced
from tests.server import Server, chat_body, events

SAMPLE = Path(__file__).parents[2] / "deploy" / "nginx" / "instances.conf"
pytestmark = [pytest.mark.full, pytest.mark.skipif(NGINX is None, reason="there is no nginx here")]

# As it stands in a guide for llama-server; only where it listens, and where the servers are, are this test's.
KNOWN = """
http {
upstream chat_backend {
    server localhost:8080;
}

upstream instruct_backend {
    server localhost:8081;
}

upstream code_backend {
    server localhost:8082;
}

server {
    location /chat/ {
        proxy_pass http://chat_backend/;
    }

    location /instruct/ {
        proxy_pass http://instruct_backend/;
    }

    location /code/ {
        proxy_pass http://code_backend/;
    }
}
}
"""
# By how many slots it has, one server is told from the other.
_SLOTS = {"chat": 2, "instruct": 3, "code": 3}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with Server("-m", "fake:", "-np", "2") as chat, Server("-m", "fake:", "-np", "3") as others:
        addresses = {8080: chat, 8081: others, 8082: others}
        for server in (chat, others):
            server.chat("hello", max_tokens=1)
        yield {str(port): server.url.removeprefix("http://") for port, server in addresses.items()}


def test_the_lines_that_people_know(tmp_path: Path, servers: dict[str, str]) -> None:
    port = _free_port()
    moved = {f"localhost:{old}": address for old, address in servers.items()}
    text = _replaced(KNOWN, {**moved, "server {\n    location": f"server {{ listen 127.0.0.1:{port};\n    location"})
    with _nginx(tmp_path, text, port):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for path, slots in _SLOTS.items():
                assert client.get(f"/{path}/props").json()["total_slots"] == slots


def test_our_sample(tmp_path: Path, servers: dict[str, str]) -> None:
    certificate, key = make_certificate(tmp_path / "tls")
    port = _free_port()
    text = _replaced(SAMPLE.read_text(), {
        **{f"server 127.0.0.1:{old};": f"server {address};" for old, address in servers.items()},
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "/etc/letsencrypt/live/llm.example.org/fullchain.pem": str(certificate),
        "/etc/letsencrypt/live/llm.example.org/privkey.pem": str(key),
    })  # fmt: skip
    trusted = ssl.create_default_context(cafile=certificate)
    with _nginx(tmp_path, f"http {{\n{text}\n}}", port):
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trusted, timeout=60) as client:
            for path, slots in _SLOTS.items():
                assert client.get(f"/{path}/props").json()["total_slots"] == slots
                assert client.get(f"/{path}/health").status_code == 200
                assert client.get(f"/{path}/metrics").status_code == 403
                assert client.post(f"/{path}/admin/unload", json={"model": "all"}).status_code == 403
                body = chat_body("say: hello there", stream=True)
                with client.stream("POST", f"/{path}/v1/chat/completions", json=body) as response:
                    assert [data for _, data in events(response)][-1] == "[DONE]"
                page = client.get(f"/{path}/")
                assert page.status_code == 200 and 'src="./assets/' in page.text, "relative, so below this path"
            assert client.get("/other/v1/models").status_code == 404
