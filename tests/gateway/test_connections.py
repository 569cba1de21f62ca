"""What a connection may cost: heads, bodies and answers have their limits, and so has their number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
        for _ in range(200):
            wire.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: sum("does not read" in line for line in hasty.output) > before, 30, "the server to notice")
        assert wire.closed()


def test_quiet_connections_make_room() -> None:
    with Server("-m", "fake:delay=0.05", env={"PADDOCK_SERVER__MAX_CONNECTIONS": "8"}) as server:
        with contextlib.ExitStack() as opened:
            quiet = [opened.enter_context(Wire(server.url)) for _ in range(30)]
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert quiet[0].closed()
            assert quiet[-1].send(GET_HEALTH).answer().status == 200
        with contextlib.ExitStack() as opened:
            for _ in range(8):
                busy = opened.enter_context(Wire(server.url))
                busy.send(post(_CHAT, chat_body("x" * 1000, stream=True)))
                while b"data:" not in busy.socket.recv(1 << 16):
                    pass
            answer = opened.enter_context(Wire(server.url)).answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"


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
