"""CORS: which pages of other origins may use the server, and what browsers are told."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ServerSettings
from paddock.gateway.auth.cross_origin import Origins
from tests.server import Server

CHAT = "/v1/chat/completions"
HEADER = "access-control-allow-origin"


def _preflight(server: Server, origin: str, method: str = "POST", headers: str = "authorization") -> httpx.Response:
    asked = {"access-control-request-method": method, "access-control-request-headers": headers}
    return server.client.options(CHAT, headers={"origin": origin, **asked})


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443"])
def test_pages_of_this_machine_may_use_the_models_by_default(fake_server: Server, origin: str) -> None:
    assert fake_server.client.get("/v1/models", headers={"origin": origin}).headers[HEADER] == origin
    preflight = _preflight(fake_server, origin)
    assert (preflight.status_code, preflight.headers[HEADER]) == (200, origin)
    assert "DELETE" in preflight.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in preflight.headers
    assert fake_server.client.get("/admin/status", headers={"origin": origin}).status_code == 403


def test_the_origins_of_the_flag_replace_the_default() -> None:
    with Server("-m", "fake:", "--cors-origins", "https://a.example") as server:
        assert server.client.get("/health", headers={"origin": "http://localhost:3000"}).status_code == 403
        assert server.client.get("/health", headers={"origin": "https://a.example"}).status_code == 200


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    with Server(
        "-m", "fake:", "--cors-origins", "localhost", "--cors-methods", "GET, POST", "--cors-headers", "x-mine",
        "--cors-credentials",
    ) as server:  # fmt: skip
        yield server


def test_methods_headers_and_credentials(strict: Server) -> None:
    origin = "http://localhost:1234"
    allowed = _preflight(strict, origin, headers="x-mine").headers
    assert set(allowed["access-control-allow-methods"].split(", ")) == {"GET", "POST"}
    assert "x-mine" in allowed["access-control-allow-headers"].lower()
    assert allowed["access-control-allow-credentials"] == "true"
    assert _preflight(strict, origin, method="DELETE").status_code == 400
    assert _preflight(strict, origin, headers="x-other").status_code == 400


def test_with_credentials_every_origin_is_echoed() -> None:
    """As llama-server: browsers refuse `*` together with credentials."""
    with Server("-m", "fake:", "--cors-origins", "*", "--cors-credentials") as server:
        response = server.client.get("/health", headers={"origin": "http://any.example"})
        assert response.headers[HEADER] == "http://any.example"
        assert response.headers["access-control-allow-credentials"] == "true"
        assert _preflight(server, "http://any.example").headers[HEADER] == "http://any.example"


@given(
    st.sampled_from(["http", "https", "ftp", "HTTP"]),
    st.sampled_from(["localhost", "127.0.0.1", "[::1]", "localhost.evil.example", "evil.example", "127.0.0.1.evil"]),
    st.sampled_from(["", ":80", ":65535", ":", ":8o", "/path"]),
)
def test_local_origins(scheme: str, host: str, port: str) -> None:
    is_local = scheme.lower() != "ftp" and host in ("localhost", "127.0.0.1", "[::1]") and port in ("", ":80", ":65535")
    assert Origins(ServerSettings(cors_origins=["localhost"])).allow(f"{scheme}://{host}{port}") == is_local


def test_the_word_localhost_is_no_origin() -> None:
    assert not Origins(ServerSettings(cors_origins=["localhost"])).allow("localhost")


@pytest.mark.parametrize(
    ("name", "value"), [("cors_methods", "GET POST"), ("cors_headers", ""), ("cors_origins", "a b")]
)
def test_a_wrong_value_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        ServerSettings(**{name: [value]})
