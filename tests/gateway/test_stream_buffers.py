"""Streams that are resumed after a lost connection (`/v1/stream`)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest, PaddockError
from paddock.gateway.generation.stream_buffers import BufferLimits, StreamBuffer, StreamBuffers
from paddock.gateway.http.framing import SSE
from tests.gateway.key_config import KeyConfig
from tests.server import Server, chat_body, wait_for
from tests.tiers import full

CHAT, STREAM, LOOKUP = "/v1/chat/completions", "/v1/stream", "/v1/streams/lookup"
ROUTES: dict[str, Any] = {
    CHAT: chat_body("horse", max_tokens=60),
    "/completion": {"prompt": "horse", "n_predict": 60},
    "/v1/responses": {"input": "horse", "max_output_tokens": 60},
    "/v1/messages": chat_body("horse", max_tokens=60),
}


@pytest.fixture(scope="module")
def slow_server() -> Iterator[Server]:
    with Server("-m", "fake:delay=0.02", "-np", "4") as server:
        server.chat("say: x")  # a stream that waits for a load begins with comments
        yield server


def _begin(server: Server, conversation: str, path: str = CHAT, **options: Any) -> Any:
    body = ROUTES[path] | {"stream": True, "temperature": 0} | options
    return server.client.stream("POST", path, json=body, headers={"X-Conversation-Id": conversation})


def _cut(response: httpx.Response, after: int = 1) -> bytes:
    """Read some pieces, then close the connection."""
    pieces = response.iter_raw()
    return b"".join(next(pieces) for _ in range(after))


def _resume(server: Server, conversation: str, start: int = 0) -> httpx.Response:
    return server.client.get(STREAM, params={"conv_id": conversation, "from": start})


def _found(server: Server, *conversations: str, **options: Any) -> Any:
    return server.client.post(LOOKUP, json={"conversation_ids": conversations}, **options).json()


def _text(data: bytes) -> str:
    """The text of chat completion chunks."""
    lines = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


# ── over HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_continues_after_its_connection_was_cut(slow_server: Server) -> None:
    expected = slow_server.chat("horse", max_tokens=60, temperature=0)["choices"][0]["message"]["content"]
    with _begin(slow_server, "cut") as response:
        seen = _cut(response, 3)
    rest = _resume(slow_server, "cut", len(seen))
    assert rest.headers["content-type"].startswith("text/event-stream")
    assert seen and rest.content and _text(seen + rest.content) == expected
    assert (seen + rest.content).endswith(b"data: [DONE]\n\n")
    assert _resume(slow_server, "cut").content == seen + rest.content, "byte for byte, from the beginning"
    (finished,) = _found(slow_server, "cut")
    assert (finished["is_done"], finished["total_bytes"]) == (True, len(seen + rest.content))
    assert finished["completed_at"] >= finished["started_at"] > 0


def test_a_stream_without_a_reader_is_listed_as_running(slow_server: Server) -> None:
    with _begin(slow_server, "unread", max_tokens=100_000) as response:
        size = len(_cut(response, 3))
    (running,) = _found(slow_server, "unread", "unknown")
    assert (running["is_done"], running["completed_at"]) == (False, 0)
    wait_for(lambda: _found(slow_server, "unread")[0]["total_bytes"] > size, 20, "more of the answer")
    assert slow_server.client.delete(STREAM, params={"conv_id": "unread"}).status_code == 204


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_every_dialect_can_be_resumed(slow_server: Server, path: str) -> None:
    with _begin(slow_server, path, path) as response:
        seen = _cut(response)
    whole = _resume(slow_server, path).content
    assert whole.startswith(seen) and len(whole) > len(seen)
    assert whole.endswith(b"\n\n") and b"event: error" not in whole


def test_several_readers_get_the_same_bytes_as_the_first(slow_server: Server) -> None:
    with (
        _begin(slow_server, "several") as response,
        slow_server.client.stream("GET", STREAM, params={"conv_id": "several"}) as other,
    ):
        first, second = response.read(), other.read()
    assert first == second


def test_a_deleted_stream_stops_generating(slow_server: Server) -> None:
    with _begin(slow_server, "deleted", max_tokens=100_000) as response:
        _cut(response)
    for _ in range(2):
        assert slow_server.client.delete(STREAM, params={"conv_id": "deleted"}).status_code == 204
    assert _resume(slow_server, "deleted").status_code == 404
    assert _found(slow_server, "deleted") == []
    wait_for(lambda: not _running(slow_server), 20, "the slot to be free")


def _running(server: Server) -> bool:
    return any(slot["is_processing"] for slot in server.client.get("/slots").json())


def test_a_new_stream_of_a_conversation_replaces_the_old_one(slow_server: Server) -> None:
    with _begin(slow_server, "again", max_tokens=100_000) as response:
        _cut(response)
    with _begin(slow_server, "again") as response:
        whole = response.read()
    assert _resume(slow_server, "again").content == whole
    wait_for(lambda: not _running(slow_server), 20, "the first stream to stop")


def test_the_answers_of_several_models_to_one_conversation(slow_server: Server) -> None:
    for name in ("both::one", "both::two", "bothered"):
        with _begin(slow_server, name, max_tokens=2) as response:
            response.read()
    assert {state["conversation_id"] for state in _found(slow_server, "both")} == {"both::one", "both::two"}


def test_invalid_requests_are_refused_by_name(slow_server: Server) -> None:
    for params, status, param in (
        ({}, 400, "conv_id"),
        ({"conv_id": "none"}, 404, "conv_id"),
        ({"conv_id": "refused", "from": "x"}, 400, "from"),
        ({"conv_id": "refused", "from": "-1"}, 400, "from"),
        ({"conv_id": "refused", "from": "9" * 5000}, 400, "from"),
    ):
        with _begin(slow_server, "refused", max_tokens=2) as response:
            response.read()
        refused = slow_server.client.get(STREAM, params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert slow_server.client.delete(STREAM).status_code == 400
    assert slow_server.client.post(LOOKUP, json={"conversation_ids": "x"}).status_code == 400


def test_without_a_conversation_nothing_is_kept(slow_server: Server) -> None:
    body = ROUTES[CHAT] | {"stream": True, "max_tokens": 100_000}
    with slow_server.client.stream("POST", CHAT, json=body) as response:
        _cut(response)
    wait_for(lambda: not _running(slow_server), 20, "the generation to end with its connection")


def test_another_key_neither_reads_nor_stops_a_stream(config: KeyConfig) -> None:
    config.keys["ben"]["concurrent_requests"] = 1
    config.models["qwen"]["path"] = "fake:delay=0.02"
    with config.server() as server:
        ben, other = {"authorization": "Bearer ben-key"}, {"authorization": "Bearer boss"}

        def begin(conversation: str, max_tokens: int) -> bytes:
            body = chat_body("horse", model="slow", stream=True, max_tokens=max_tokens)
            headers = {**ben, "X-Conversation-Id": conversation}
            with server.client.stream("POST", CHAT, json=body, headers=headers) as response:
                assert response.status_code == 200
                return _cut(response)

        def ask() -> int:
            body = chat_body("hi", model="slow", max_tokens=1)
            return server.client.post(CHAT, json=body, headers=ben).status_code

        seen, params = begin("secret", 40), {"conv_id": "secret"}
        assert server.client.get(STREAM, params=params, headers=other).status_code == 404
        assert server.client.delete(STREAM, params=params, headers=other).status_code == 204
        assert _found(server, "secret", headers=other) == []
        assert server.client.get(STREAM, params=params).status_code == 401
        whole = server.client.get(STREAM, params=params, headers=ben)
        assert whole.content.startswith(seen) and whole.content.endswith(b"data: [DONE]\n\n")
        assert ask() == 200
        usage = server.client.get("/v1/usage", headers=ben).json()
        assert usage["completion_tokens"] == 41
        begin("endless", 100_000)
        assert ask() == 429, "a stream without a reader counts as a running request of its key"
        assert server.client.delete(STREAM, params={"conv_id": "endless"}, headers=other).status_code == 204
        assert ask() == 429, "another key has not stopped it"
        assert server.client.delete(STREAM, params={"conv_id": "endless"}, headers=ben).status_code == 204
        wait_for(lambda: ask() == 200, 20, "the stream to stop")


def test_limits_and_metrics(tmp_path: Path) -> None:
    limits = {"stream_buffer_bytes": 2000, "stream_buffers_per_key": 2, "stream_buffer_seconds": 3600}
    (tmp_path / "c.json").write_text(json.dumps({"server": limits}))
    with Server("-m", "fake:", "--config", str(tmp_path / "c.json")) as server:
        for name in ("one", "two", "three"):
            with _begin(server, name) as response:
                whole = response.read()
        assert _resume(server, "one").status_code == 404, "the oldest one made room"
        lost = _resume(server, "three")
        assert lost.status_code == 400 and "Stream offset lost" in lost.json()["error"]["message"]
        assert _resume(server, "three", len(whole) - 2000).content == whole[-2000:]
        page = server.client.get("/metrics").text
        for line in (
            "paddock_stream_buffers 2.0",
            "paddock_stream_buffer_bytes 4000.0",
            "paddock_stream_resumes_total 1.0",
        ):
            assert line in page


@full
def test_a_stopping_server_finishes_a_stream_without_a_reader() -> None:
    with Server("-m", "fake:delay=0.02", env={"PADDOCK_SERVER__SHUTDOWN_GRACE": "120"}) as server:
        with _begin(server, "stopping", max_tokens=250) as response:  # five seconds, to ask the stopping server
            seen = _cut(response)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.client.get("/health").status_code == 503, 20, "the server to stop")
        whole = _resume(server, "stopping").content
        assert whole.startswith(seen) and whole.endswith(b"data: [DONE]\n\n")
        assert server.process.wait(100) == 0


# ── the buffer itself ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60), st.integers(0, 200))
def test_a_buffer_keeps_the_last_bytes(pieces: list[bytes], size: int, offset: int) -> None:
    async def read() -> bytes:
        buffer = StreamBuffer("a", SSE, size, 0)
        for piece in pieces:
            buffer.append(piece)
        buffer.finish(1)
        assert buffer.held <= size and buffer.total == len(whole)
        return b"".join([piece async for piece in buffer.read_from(offset)])

    whole = b"".join(pieces)
    if offset < len(whole) - size:
        with pytest.raises(InvalidRequest, match="Stream offset lost"):
            asyncio.run(read())
    else:
        assert asyncio.run(read()) == whole[offset:]


def test_a_finished_stream_expires() -> None:
    async def run() -> None:
        now = 0.0
        buffers = StreamBuffers(BufferLimits(per_key=2, size=100, seconds=300), clock=lambda: now)
        ended, running = buffers.open("key", "ended", SSE), buffers.open("key", "running", SSE)
        assert ended is not None and running is not None
        ended.finish(now)
        now = 299
        assert buffers.find("key", "ended") is ended
        assert buffers.find("other", "ended") is None
        now = 300
        assert buffers.find("key", "ended") is None
        assert buffers.find("key", "running") is running, "only finished streams expire"
        assert buffers.open("key", "second", SSE) is not None
        assert buffers.open("key", "third", SSE) is None, "all buffers of the key are in use"
        assert buffers.open("other", "third", SSE) is not None

    asyncio.run(run())


def test_silence_is_kept_alive_and_an_error_is_an_event() -> None:
    async def run() -> bytes:
        released, ended = asyncio.Event(), asyncio.Event()

        async def events() -> AsyncGenerator[bytes]:
            yield b"one"
            await released.wait()
            raise PaddockError("broken")

        buffers = StreamBuffers(BufferLimits(per_key=1, size=10_000, seconds=0))
        buffer = buffers.open("", "a", SSE)
        assert buffer is not None
        buffers.fill(
            buffer,
            events(),
            keep_alive=b"ping",
            silence=0.001,
            error_event=lambda error: error.message.encode(),
            on_end=ended.set,
        )
        seen = b""
        async for piece in buffer.read_from(0):
            seen += piece
            if b"ping" in seen:
                released.set()
        await ended.wait()
        return seen

    seen = asyncio.run(run())
    assert seen.startswith(b"oneping") and seen.endswith(b"broken")


def test_a_stream_that_is_stopped_at_once_is_closed() -> None:
    async def run() -> None:
        async def events() -> AsyncGenerator[bytes]:
            yield b"never"

        buffers = StreamBuffers(BufferLimits(per_key=1, size=100, seconds=300))
        buffer, ended = buffers.open("", "a", SSE), asyncio.Event()
        assert buffer is not None
        buffers.fill(buffer, events(), keep_alive=b"", silence=-1, error_event=lambda _: b"", on_end=ended.set)
        buffers.remove("", "a")
        await ended.wait()
        assert buffer.is_done and [piece async for piece in buffer.read_from(0)] == []

    asyncio.run(run())
