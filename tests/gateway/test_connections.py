"""Limits of connections: the size and time of heads, bodies and answers, and the number of connections."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server import Server, chat_body, wait_for
from tests.sockets import GET_HEALTH, Wire, post
from tests.tiers import full

_CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def short_timeouts() -> Iterator[Server]:
    """A server with short timeouts."""
    limits = {"HEADER_TIMEOUT": "1.5", "BODY_TIMEOUT": "1.5", "WRITE_TIMEOUT": "0.5", "KEEP_ALIVE_TIMEOUT": "1"}
    with Server(
        "-m", "fake:", "-np", "64", env={f"PADDOCK_SERVER__{name}": value for name, value in limits.items()}
    ) as server:
        yield server
        assert server.chat("say: well")["choices"][0]["message"]["content"] == "well"


def test_too_many_headers(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        wire.send(b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(101)) + b"\r\n")
        answer = wire.answer()
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert "100" in answer.json()["error"]["message"]
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert wire.closed()


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["complete", "endless"])
def test_headers_too_large(fake_server: Server, end: bytes) -> None:
    with Wire(fake_server.url) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000 + end)
        answer = wire.answer()
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert "65536" in answer.json()["error"]["message"]


def test_headers_below_the_limit_are_accepted(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        assert (
            wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 60_000 + b"\r\n\r\n").answer().status
            == 200
        )


def test_trailers_are_limited(fake_server: Server) -> None:
    body = b'{"messages":[{"role":"user","content":"say: x"}]}'
    head = f"POST {_CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Wire(fake_server.url) as wire:
        wire.send(head + b"%x\r\n%s\r\n0\r\nTrailer: " % (len(body), body) + b"x" * 400_000)
        assert wire.closed()
    with Wire(fake_server.url) as wire:  # a small trailer that is sent byte by byte
        wire.send(head + b"".join(b"1;%s\r\n%c\r\n" % (b"e" * 2000, byte) for byte in body) + b"0\r\n\r\n")
        assert wire.answer().status == 200


def test_a_url_that_is_too_long(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        answer = wire.send(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n").answer()
        assert (answer.status, answer.code) == (414, "uri_too_long")


def test_data_that_is_not_http(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        answer = wire.send(b"\x16\x03\x01 hello\r\n\r\n").answer()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert wire.closed()


def test_an_incomplete_head_times_out(short_timeouts: Server) -> None:
    with Wire(short_timeouts.url) as silent, Wire(short_timeouts.url) as slow, Wire(short_timeouts.url) as later:
        slow.send(b"GET /health HTTP/1.1\r\nHo")
        later.send(GET_HEALTH)
        assert later.answer().status == 200
        later.send(b"GE")
        for wire in (slow, later):
            answer = wire.answer()
            assert (answer.status, answer.code) == (408, "request_timeout")
            assert "1.5 s" in answer.json()["error"]["message"]
            assert wire.closed()
        assert silent.closed()


def test_a_missing_body_times_out(short_timeouts: Server) -> None:
    with Wire(short_timeouts.url) as wire:
        answer = wire.send(post(_CHAT, b'{"messages"', length=100)).answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert "11 bytes" in answer.json()["error"]["message"]


def test_a_body_that_arrives_too_slowly_is_refused(short_timeouts: Server) -> None:
    """Each byte arrives before the timeout, but the rate is below the minimum."""
    with Wire(short_timeouts.url) as wire:
        wire.send(post(_CHAT, b"", length=1 << 20))
        wire.socket.settimeout(0.01)
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                with contextlib.suppress(TimeoutError):
                    if wire.socket.recv(12) == b"HTTP/1.1 408":
                        return
                wire.send(b"[")
        pytest.fail("it was let go on")


def test_a_client_can_read_an_early_answer_while_it_sends_the_body(fake_server: Server) -> None:
    """The rest of the body is discarded; the connection stays usable."""
    with Wire(fake_server.url) as wire:
        wire.send(post("/nowhere", b"x" * 5_000_000)).send(GET_HEALTH)
        assert wire.answer().status == 404
        assert wire.answer().status == 200


def test_an_idle_connection_is_closed(short_timeouts: Server) -> None:
    with Wire(short_timeouts.url) as wire:
        assert wire.send(GET_HEALTH).answer().status == 200
        assert wire.closed()


def test_a_stream_that_the_client_does_not_read(short_timeouts: Server) -> None:
    body = {"prompt": "x", "n_predict": 60, "n_cmpl": 64, "n_probs": 200, "stream": True}
    with Wire(short_timeouts.url, receive_buffer=1024) as wire:
        wire.send(post("/completion", body))
        wait_for(lambda: any("does not read" in line for line in short_timeouts.output), 30, "the server to notice")
        wait_for(
            lambda: not any(slot["is_processing"] for slot in short_timeouts.client.get("/slots").json()),
            30,
            "the generation to end",
        )


@full
def test_an_answer_that_the_client_does_not_read(short_timeouts: Server) -> None:
    before = sum("does not read" in line for line in short_timeouts.output)
    with Wire(short_timeouts.url, receive_buffer=1024) as wire:
        for _ in range(50):
            wire.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(
            lambda: sum("does not read" in line for line in short_timeouts.output) > before, 30, "the server to notice"
        )
        assert wire.closed()


def _settings(file: Path, **server: object) -> str:
    file.write_text(json.dumps({"server": server}))
    return str(file)


def _limits(**limits: int) -> dict[str, str]:
    names = {
        "per_address": "MAX_CONNECTIONS_PER_ADDRESS",
        "per_key": "MAX_CONNECTIONS_PER_KEY",
        "all": "MAX_CONNECTIONS",
    }
    return {f"PADDOCK_SERVER__{names[name]}": str(value) for name, value in limits.items()}


def _stream(server: Server, *headers: str) -> Wire:
    """A connection with a running answer, which takes a minute."""
    wire = Wire(server.url)
    wire.send(post(_CHAT, chat_body("x" * 1000, stream=True), *headers))
    while b"data:" not in wire.socket.recv(1 << 16):
        pass
    return wire


def test_idle_connections_are_closed_when_there_are_too_many() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "8", env=_limits(all=8, per_address=8, per_key=8)) as server:
        with contextlib.ExitStack() as opened:
            quiet = [opened.enter_context(Wire(server.url)) for _ in range(30)]
            assert httpx.get(f"{server.url}/health", timeout=200).status_code == 200
            assert quiet[0].closed()
            assert quiet[-1].send(GET_HEALTH).answer().status == 200
        with contextlib.ExitStack() as opened:
            for _ in range(7):
                opened.enter_context(_stream(server))
            # The last connection is reserved for health checks and admins.
            wire = opened.enter_context(Wire(server.url))
            answer = wire.send(post(_CHAT, chat_body("x"))).answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
            assert wire.send(GET_HEALTH).answer().status == 200
            assert wire.send(b"GET /admin/status HTTP/1.1\r\nHost: localhost\r\n\r\n").answer().status == 200


def test_connections_per_address_are_limited() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "8", env=_limits(all=8, per_address=3, per_key=8)) as server:
        with contextlib.ExitStack() as opened:
            for _ in range(3):
                opened.enter_context(_stream(server))
            answer = opened.enter_context(Wire(server.url)).answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert "3 connections are open from this address" in answer.json()["error"]["message"]


def test_connections_per_key_are_limited(tmp_path: Path) -> None:
    """A connection with a key does not count for its address, which many users may share."""
    keys = {"one": {"key": "one"}, "two": {"key": "two"}, "boss": {"key": "boss", "admin": True}}
    server_settings = {"max_connections": 32, "max_connections_per_key": 4, "max_connections_per_address": 6}
    config = _settings(tmp_path / "config.json", keys=keys, max_watchers_per_key=2, **server_settings)
    with Server("-m", "fake:delay=0.05", "-np", "16", "--config", config) as server:
        with contextlib.ExitStack() as opened:

            def ask(path: str, key: str) -> Wire:
                wire = opened.enter_context(Wire(server.url))
                return wire.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n".encode())

            for path in ("/live", "/models/sse"):
                assert ask(path, "one").socket.recv(15) == b"HTTP/1.1 200 OK"
            for path in ("/live", "/models/sse"):
                answer = ask(path, "one").answer()
                assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
                assert "2 streams" in answer.json()["error"]["message"] and "retry-after" in answer.headers
            for _ in range(2):
                opened.enter_context(_stream(server, "X-API-Key: one"))
            answer = ask("/v1/models", "one").answer()
            assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
            assert "4 connections" in answer.json()["error"]["message"]
            for _ in range(4):
                opened.enter_context(_stream(server, "X-API-Key: two"))
            assert ask("/v1/models", "two").answer().status == 429
            assert ask("/admin/status", "boss").answer().status == 200
            assert ask("/health", "").answer().status == 200
        url, key = f"{server.url}/v1/models", {"X-API-Key": "one"}
        wait_for(
            lambda: httpx.get(url, headers=key, timeout=200).status_code == 200, 20, "the connections to be closed"
        )


@full
def test_watchers_do_not_use_the_reserved_requests(tmp_path: Path) -> None:
    keys = {f"user{number}": {"key": f"user{number}"} for number in range(4)} | {"boss": {"key": "boss", "admin": True}}
    config = _settings(tmp_path / "config.json", keys=keys, max_connections=32)
    with Server("-m", "fake:", "--config", config) as server, contextlib.ExitStack() as opened:
        statuses = []
        for number in range(64):
            wire = opened.enter_context(Wire(server.url))
            wire.send(f"GET /models/sse HTTP/1.1\r\nHost: localhost\r\nX-API-Key: user{number % 4}\r\n\r\n".encode())
            statuses.append(wire.socket.recv(12)[-3:])
        assert statuses.count(b"200") == 30, "two of 32 are reserved"
        assert set(statuses[30:]) == {b"503"}
        for _ in range(5):
            assert httpx.get(f"{server.url}/health", timeout=200).status_code == 200
            assert httpx.get(f"{server.url}/metrics", timeout=200).status_code == 200
            assert (
                httpx.get(f"{server.url}/admin/status", headers={"X-API-Key": "boss"}, timeout=200).status_code == 200
            )
        assert httpx.get(f"{server.url}/v1/models", headers={"X-API-Key": "user1"}, timeout=200).status_code == 503


def test_pipelined_requests_are_limited(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:  # many requests in few bytes
        wire.send(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" + b"GET /h HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
        assert wire.closed()
    slow = post("/completion", {"prompt": "x" * 50, "n_predict": 500})
    with Wire(fake_server.url) as wire:
        wire.send(slow + post(_CHAT, b"x" * 200_000))
        assert wire.closed()


@full
@pytest.mark.parametrize("header", [b"Authorization: Bearer secret", b"X-API-Key: secret"])
def test_a_trailer_does_not_become_a_header(header: bytes) -> None:
    """A proxy in front of the server checks headers, not trailers."""
    body = b'{"messages":[{"role":"user","content":"say: x"}]}'
    with Server("-m", "fake:", "--api-key", "secret") as server:
        chunked = f"POST {_CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n".encode()
        rest = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(body), body, header)
        with Wire(server.url) as wire:
            assert wire.send(chunked + b"\r\n" + rest).answer().status == 401
            assert wire.send(chunked + header + b"\r\n\r\n" + rest).answer().status == 200
            assert wire.send(GET_HEALTH).answer().status == 200


@full
def test_pipelined_requests_are_answered_in_order() -> None:
    """The connection is not idle while a request runs, however long it takes."""
    with Server("-m", "fake:delay=0.05", env={"PADDOCK_SERVER__KEEP_ALIVE_TIMEOUT": "1"}) as server:
        with Wire(server.url) as wire:
            asked = [post(_CHAT, chat_body(f"say: {letter * 40}")) for letter in "abc"]
            wire.send(asked[0] + asked[1] + asked[2][:20])
            for letter in "ab":
                answer = wire.answer()
                assert answer.json()["choices"][0]["message"]["content"] == letter * 40
            assert wire.send(asked[2][20:]).answer().status == 200
