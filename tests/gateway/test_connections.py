"""What a connection may cost: heads, bodies and answers have their limits, and so has their number."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server import Server, chat_body, wait_for
from tests.sockets import GET_HEALTH, Wire, post

_CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A server without patience."""
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


def test_headers_that_are_large_but_not_too_large(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        assert (
            wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 60_000 + b"\r\n\r\n").answer().status
            == 200
        )


def test_what_follows_a_body_is_bounded_too(fake_server: Server) -> None:
    body = b'{"messages":[{"role":"user","content":"say: x"}]}'
    head = f"POST {_CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Wire(fake_server.url) as wire:
        wire.send(head + b"%x\r\n%s\r\n0\r\nTrailer: " % (len(body), body) + b"x" * 400_000)
        assert wire.closed()
    with Wire(fake_server.url) as wire:  # and one that is sent byte by byte is not too large
        wire.send(head + b"".join(b"1;%s\r\n%c\r\n" % (b"e" * 2000, byte) for byte in body) + b"0\r\n\r\n")
        assert wire.answer().status == 200


def test_an_address_that_is_too_long(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        answer = wire.send(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n").answer()
        assert (answer.status, answer.code) == (414, "uri_too_long")


def test_no_http_at_all(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:
        answer = wire.send(b"\x16\x03\x01 hello\r\n\r\n").answer()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert wire.closed()


def test_a_head_that_does_not_come(hasty: Server) -> None:
    with Wire(hasty.url) as silent, Wire(hasty.url) as slow, Wire(hasty.url) as later:
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


def test_a_body_that_does_not_come(hasty: Server) -> None:
    with Wire(hasty.url) as wire:
        answer = wire.send(post(_CHAT, b'{"messages"', length=100)).answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert "11 bytes" in answer.json()["error"]["message"]


def test_a_body_that_comes_in_drops(hasty: Server) -> None:
    """It moves, but at a byte now and then it would take for ever."""
    with Wire(hasty.url) as wire:
        wire.send(post(_CHAT, b"", length=1 << 20))
        wire.socket.settimeout(0.01)
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                with contextlib.suppress(TimeoutError):
                    if wire.socket.recv(12) == b"HTTP/1.1 408":
                        return
                wire.send(b"[")
        pytest.fail("it was let go on")


def test_an_answer_before_the_end_of_the_body_can_be_read(fake_server: Server) -> None:
    """The rest of the body is read and thrown away; the connection stays usable."""
    with Wire(fake_server.url) as wire:
        wire.send(post("/nowhere", b"x" * 5_000_000)).send(GET_HEALTH)
        assert wire.answer().status == 404
        assert wire.answer().status == 200


def test_a_connection_nobody_uses_any_more(hasty: Server) -> None:
    with Wire(hasty.url) as wire:
        assert wire.send(GET_HEALTH).answer().status == 200
        assert wire.closed()


def test_a_stream_that_nobody_reads(hasty: Server) -> None:
    body = {"prompt": "x", "n_predict": 60, "n_cmpl": 64, "n_probs": 200, "stream": True}
    with Wire(hasty.url, receive_buffer=1024) as wire:
        wire.send(post("/completion", body))
        wait_for(lambda: any("does not read" in line for line in hasty.output), 30, "the server to notice")
        wait_for(lambda: not any(slot["is_processing"] for slot in hasty.client.get("/slots").json()), 30, "its end")


def test_a_whole_answer_that_nobody_reads(hasty: Server) -> None:
    before = sum("does not read" in line for line in hasty.output)
    with Wire(hasty.url, receive_buffer=1024) as wire:
        for _ in range(50):
            wire.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: sum("does not read" in line for line in hasty.output) > before, 30, "the server to notice")
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
    """A connection with an answer under way, which takes a minute."""
    wire = Wire(server.url)
    wire.send(post(_CHAT, chat_body("x" * 1000, stream=True), *headers))
    while b"data:" not in wire.socket.recv(1 << 16):
        pass
    return wire


def test_quiet_connections_make_room() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "8", env=_limits(all=8, per_address=8, per_key=8)) as server:
        with contextlib.ExitStack() as opened:
            quiet = [opened.enter_context(Wire(server.url)) for _ in range(30)]
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert quiet[0].closed()
            assert quiet[-1].send(GET_HEALTH).answer().status == 200
        with contextlib.ExitStack() as opened:
            for _ in range(7):
                opened.enter_context(_stream(server))
            # The last place is for health checks and admins.
            wire = opened.enter_context(Wire(server.url))
            answer = wire.send(post(_CHAT, chat_body("x"))).answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
            assert wire.send(GET_HEALTH).answer().status == 200
            assert wire.send(b"GET /admin/status HTTP/1.1\r\nHost: localhost\r\n\r\n").answer().status == 200


def test_one_address_does_not_get_all_connections() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "8", env=_limits(all=8, per_address=3, per_key=8)) as server:
        with contextlib.ExitStack() as opened:
            for _ in range(3):
                opened.enter_context(_stream(server))
            answer = opened.enter_context(Wire(server.url)).answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert "3 connections are open from this address" in answer.json()["error"]["message"]


def test_a_key_does_not_get_all_connections(tmp_path: Path) -> None:
    """Nor does a connection that has shown a key count for its address, which many may share."""
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
        wait_for(lambda: httpx.get(url, headers=key).status_code == 200, 20, "the connections to be closed")


def test_watchers_leave_room_for_admins_and_health(tmp_path: Path) -> None:
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
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert httpx.get(f"{server.url}/metrics").status_code == 200
            assert httpx.get(f"{server.url}/admin/status", headers={"X-API-Key": "boss"}).status_code == 200
        assert httpx.get(f"{server.url}/v1/models", headers={"X-API-Key": "user1"}).status_code == 503


def test_what_is_sent_ahead_is_bounded(fake_server: Server) -> None:
    with Wire(fake_server.url) as wire:  # many requests in few bytes
        wire.send(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" + b"GET /h HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
        assert wire.closed()
    slow = post("/completion", {"prompt": "x" * 50, "n_predict": 500})
    with Wire(fake_server.url) as wire:
        wire.send(slow + post(_CHAT, b"x" * 200_000))
        assert wire.closed()


@pytest.mark.parametrize("header", [b"Authorization: Bearer secret", b"X-API-Key: secret"])
def test_a_trailer_is_no_header(header: bytes) -> None:
    """Whatever a proxy in front has checked, it has checked the headers."""
    body = b'{"messages":[{"role":"user","content":"say: x"}]}'
    with Server("-m", "fake:", "--api-key", "secret") as server:
        chunked = f"POST {_CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n".encode()
        rest = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(body), body, header)
        with Wire(server.url) as wire:
            assert wire.send(chunked + b"\r\n" + rest).answer().status == 401
            assert wire.send(chunked + header + b"\r\n\r\n" + rest).answer().status == 200
            assert wire.send(GET_HEALTH).answer().status == 200


def test_requests_that_are_sent_ahead_are_answered_in_turn() -> None:
    """While one is under way the connection is not idle, however long it takes."""
    with Server("-m", "fake:delay=0.05", env={"PADDOCK_SERVER__KEEP_ALIVE_TIMEOUT": "1"}) as server:
        with Wire(server.url) as wire:
            asked = [post(_CHAT, chat_body(f"say: {letter * 40}")) for letter in "abc"]
            wire.send(asked[0] + asked[1] + asked[2][:20])
            for letter in "ab":
                answer = wire.answer()
                assert answer.json()["choices"][0]["message"]["content"] == letter * 40
            assert wire.send(asked[2][20:]).answer().status == 200
