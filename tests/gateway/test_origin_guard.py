"""Web pages of other origins are refused, also those that use DNS rebinding."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ServerSettings
from paddock.gateway.auth.cross_origin import Origins
from paddock.gateway.auth.origin_guard import OriginGuard, own_names
from tests.server import Server, chat_body

CHAT = "/v1/chat/completions"


def _ask(server: Server, **headers: str) -> httpx.Response:
    return server.client.get("/v1/models", headers={name.replace("_", "-"): value for name, value in headers.items()})


def _code(response: httpx.Response) -> str:
    assert response.status_code == 403, response.text
    code: str = response.json()["error"]["code"]
    return code


@pytest.fixture(scope="module")
def proxied() -> Iterator[Server]:
    with Server(
        "-m", "fake:", "--allowed-hosts", "llm.example,*.inner.example", "--cors-origins", "https://a.example/",
        "--cors-origins", "http://b.example",
    ) as server:  # fmt: skip
        yield server


# ── host names ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "me.localhost:80", "127.0.0.1:8080", "[::1]:8080", "10.1.2.3", "chat_backend"]
)
def test_host_names_that_cannot_be_registered_are_allowed(fake_server: Server, host: str) -> None:
    assert _ask(fake_server, host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_other_host_names_are_refused(fake_server: Server, host: str) -> None:
    assert _code(_ask(fake_server, host=host)) == "host_not_allowed"
    assert _code(_ask(fake_server, host=host, origin=f"http://{host}")) == "host_not_allowed"


def test_allowed_host_names(proxied: Server) -> None:
    for host in ("llm.example", "LLM.example.:443", "a.inner.example", "localhost"):
        assert _ask(proxied, host=host).status_code == 200
    for host in ("example", "inner.example", "other.example"):
        assert (_ask(proxied, host=host).status_code == 200) == ("." not in host)


def test_a_public_server_with_keys_accepts_any_host_name() -> None:
    with Server("-m", "fake:", "--host", "0.0.0.0", "--api-key", "k") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/health", headers={"host": "llm.example"}, timeout=200).status_code == 200


@pytest.fixture(scope="module")
def without_keys() -> Iterator[str]:
    """The address of a public server without keys, as in the container image."""
    with Server("-m", "fake:", "--host", "0.0.0.0") as server:
        yield server.url.replace("0.0.0.0", "127.0.0.1")


def test_dns_rebinding_is_refused_without_keys(without_keys: str) -> None:
    rebound = {"host": "evil.example:8080", "origin": "http://evil.example:8080", "sec-fetch-site": "same-origin"}
    response = httpx.post(f"{without_keys}/admin/unload", json={"model": "all"}, headers=rebound, timeout=200)
    assert _code(response) == "host_not_allowed"
    assert _code(httpx.get(f"{without_keys}/v1/models", headers=rebound, timeout=200)) == "host_not_allowed"


def test_addresses_and_own_names_are_allowed_without_keys(without_keys: str) -> None:
    machine = socket.gethostname()
    for host in (
        None,
        "127.0.0.1:8080",
        "192.0.2.7",
        "[2001:db8::1]:80",
        "localhost",
        "paddock",
        machine,
        f"{machine}:80",
    ):
        headers = {} if host is None else {"host": host}
        assert httpx.get(f"{without_keys}/v1/models", headers=headers, timeout=200).status_code == 200


def test_keys_from_a_reload_end_the_check_of_host_names(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"server": {"host": "0.0.0.0"}}')
    with Server("-m", "fake:", "--config", str(config)) as server:
        url, named = server.url.replace("0.0.0.0", "127.0.0.1"), {"host": "llm.example"}
        assert _code(httpx.get(f"{url}/health", headers=named, timeout=200)) == "host_not_allowed"
        config.write_text('{"server": {"host": "0.0.0.0", "api_keys": ["a-long-enough-key"]}}')
        assert httpx.post(f"{url}/admin/reload", timeout=200).status_code == 200
        assert httpx.get(f"{url}/health", headers=named, timeout=200).status_code == 200


def test_own_names() -> None:
    assert own_names(["0.0.0.0"], "Box.lan") == {"0.0.0.0", "box.lan", "box.local"}
    assert own_names(["llm.example"], "") == {"llm.example"}


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40))
def test_subdomains_of_other_domains_are_refused(before: str) -> None:
    layer = OriginGuard(_nothing, ServerSettings(host="0.0.0.0"), Origins(ServerSettings()), lambda: False)
    assert not layer._answers_to(f"{before}.evil.example")
    assert not layer._answers_to(f"{before}.evil.example:80")


async def _nothing(*_: object) -> None:
    pass


# ── origins ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_configured_origin_is_allowed(fake_server: Server) -> None:
    response = _ask(fake_server, origin="http://localhost:5000")
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "http://localhost:5000"
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    asked = {"origin": "http://localhost:5000", "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization,content-type"
    preflight = fake_server.client.options(CHAT, headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:5000"
    assert "authorization" in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost.evil.example", "ftp://localhost", "null", "file://", "localhost"],
)
def test_other_origins_are_refused(fake_server: Server, origin: str) -> None:
    assert _code(_ask(fake_server, origin=origin)) == "origin_not_allowed"
    simple = {"origin": origin, "content-type": "text/plain"}
    assert _code(fake_server.client.post(CHAT, json=chat_body("say: x"), headers=simple)) == "origin_not_allowed"
    asked = {"origin": origin, "access-control-request-method": "POST"}
    assert _code(fake_server.client.options(CHAT, headers=asked)) == "origin_not_allowed"


def test_allowed_origins_may_not_use_admin_routes_without_a_key(fake_server: Server) -> None:
    page = {"origin": "http://localhost:5000"}
    for ask in (
        fake_server.client.build_request("POST", "/admin/unload", json={"model": "all"}, headers=page),
        fake_server.client.build_request("POST", "/models/unload", json={"model": "fake"}, headers=page),
        fake_server.client.build_request("GET", "/admin/status", headers=page),
        fake_server.client.build_request("GET", "/slots", headers=page),
    ):
        assert _code(fake_server.client.send(ask)) == "origin_not_allowed"
    assert fake_server.client.get("/admin/status", headers={"origin": fake_server.url}).status_code == 200
    with Server("-m", "fake:", "--api-key", "k") as server:
        assert server.client.get("/admin/status", headers=page | {"x-api-key": "k"}).status_code == 200


def test_the_own_origin_is_allowed(fake_server: Server) -> None:
    authority = fake_server.url.removeprefix("http://")
    assert _ask(fake_server, origin=fake_server.url).status_code == 200
    assert _ask(fake_server, origin="http://localhost", host="localhost:80").status_code == 200
    assert _code(_ask(fake_server, origin="http://box", host="box:81")) == "origin_not_allowed"
    # Behind a proxy with TLS, with or without X-Forwarded-Host.
    assert _ask(fake_server, origin=f"https://{authority}").status_code == 200
    assert _ask(fake_server, origin="https://llm.example", x_forwarded_host="llm.example").status_code == 200


def test_allowed_origins(proxied: Server) -> None:
    for origin in ("https://a.example", "http://b.example"):
        assert _ask(proxied, origin=origin).headers["access-control-allow-origin"] == origin
    assert _code(_ask(proxied, origin="http://localhost:5000")) == "origin_not_allowed"
    with Server("-m", "fake:", "--cors-origins", "*") as server:
        assert _ask(server, origin="http://any.example").headers["access-control-allow-origin"] == "*"


def test_requests_of_pages_without_an_origin_header(fake_server: Server) -> None:
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert _code(fake_server.client.get("/models?reload=1", headers=image)) == "origin_not_allowed"
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert fake_server.client.get("/docs", headers=link).status_code == 200
    assert _code(fake_server.client.post(CHAT, headers=link, json=chat_body("x"))) == "origin_not_allowed"
    assert _ask(fake_server, sec_fetch_site="same-origin").status_code == 200


def test_every_response_has_the_security_headers(fake_server: Server) -> None:
    for path in ("/health", "/nowhere", "/v1/models"):
        headers = fake_server.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "strict-transport-security" not in headers
    with fake_server.client.stream("POST", CHAT, json=chat_body("say: x", stream=True)) as response:
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-content-type-options"] == "nosniff"
