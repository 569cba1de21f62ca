"""A streaming chat client light enough not to be what is measured: it stamps events, and decodes them afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Escaped quotes in generated text cannot look like this, so a match is always the delta's own field.
_CONTENT = re.compile(rb'"(?:(?:reasoning_)?content|text)"\s*:\s*"(?!")')
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class ChatFailed(Exception):
    """The server refused, broke off or answered nothing."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    key: str = ""
    """Sent along, if any."""


@dataclass
class Answer:
    sent: float = 0.0
    done: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each event with content arrived."""
    payloads: list[bytes] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        return self.times[0] - self.sent

    @property
    def tokens(self) -> int:
        return int(self._usage().get("completion_tokens", len(self.times)))

    @property
    def prompt_tokens(self) -> int:
        return int(self._usage().get("prompt_tokens", 0))

    @property
    def cached_tokens(self) -> int:
        return int((self._usage().get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def text(self) -> str:
        deltas = (choice["delta"] for event in self._events() for choice in event.get("choices", ()))
        return "".join(delta.get("content") or "" for delta in deltas)

    def _events(self) -> Iterator[dict[str, Any]]:
        yield from (json.loads(payload) for payload in self.payloads if payload != b"[DONE]")

    def _usage(self) -> dict[str, Any]:
        for payload in reversed(self.payloads):
            if b'"prompt_tokens"' in payload:
                usage: dict[str, Any] = json.loads(payload)["usage"]
                return usage
        return {}


class Response:
    """Takes an HTTP response in pieces, cut anywhere, and gives the payloads of its `data:` lines as they complete."""

    def __init__(self) -> None:
        self.status = 0
        self.ended = False
        self.body = bytearray()
        """What a refusal says; a stream is not kept here."""
        self._raw = bytearray()
        self._line = b""
        self._chunked = False
        self._left: int | None = None

    @property
    def ends_by_closing(self) -> bool:
        return self.status != 0 and not self._chunked and self._left is None

    def feed(self, piece: bytes) -> list[bytes]:
        self._raw += piece
        if not self.status and not self._take_head():
            return []
        body = self._take_chunks() if self._chunked else self._take_plain()
        if self.status != 200:
            self.body += body
            return []
        *lines, self._line = (self._line + body).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def _take_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *headers = bytes(self._raw[:end]).split(b"\r\n")
        del self._raw[: end + 4]
        self.status = int(first.split()[1])
        for header in headers:
            name, _, value = header.partition(b":")
            if name.lower() == b"transfer-encoding":
                self._chunked = value.strip().lower() == b"chunked"
            elif name.lower() == b"content-length":
                self._left = int(value)
        return True

    def _take_plain(self) -> bytes:
        body = bytes(self._raw)
        self._raw.clear()
        if self._left is not None:
            self._left -= len(body)
            self.ended = self._left <= 0
        return body

    def _take_chunks(self) -> bytes:
        taken = b""
        while not self.ended and (line_end := self._raw.find(b"\r\n")) >= 0:
            size = int(self._raw[:line_end].partition(b";")[0], 16)
            start = line_end + 2
            if len(self._raw) < start + size + 2:
                break
            taken += self._raw[start : start + size]
            del self._raw[: start + size + 2]
            self.ended = size == 0
        return taken


class _Exchange(asyncio.Protocol):
    def __init__(self, request: bytes, on_event: Callable[[int], object] | None) -> None:
        self.answer = Answer()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._on_event = on_event
        self._response = Response()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.answer.sent = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        payloads = self._response.feed(data)
        for payload in payloads:
            if _CONTENT.search(payload):
                self.answer.times.append(now)
                if self._on_event:
                    self._on_event(len(self.answer.times))
        if payloads:
            self.answer.done = now
            self.answer.payloads += payloads
        if self._response.ended:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        whole = exc is None and self._response.ends_by_closing
        self._finish(None if whole else ChatFailed(f"the connection closed in the middle of an answer ({exc})"))

    def _finish(self, failure: ChatFailed | None) -> None:
        if self.finished.done():
            return
        if self._response.status not in (0, 200):
            failure = ChatFailed(f"HTTP {self._response.status}: {self._response.body[:300].decode(errors='replace')}")
        broken = next((payload for payload in self.answer.payloads[-2:] if payload.startswith(b'{"error"')), None)
        if broken or not (failure or self.answer.times):
            failure = ChatFailed(f"the answer failed or was empty: {(broken or b'').decode(errors='replace')}")
        if failure:
            self.finished.set_exception(failure)
        else:
            self.finished.set_result(None)


async def stream(
    address: Address, body: dict[str, Any], on_event: Callable[[int], object] | None = None, path: str = CHAT
) -> Answer:
    """One streamed answer on a connection of its own; `on_event` hears how many events with content have come."""
    request = _request(address, path, {**body, "stream": True, "stream_options": {"include_usage": True}}, "close")
    transport, exchange = await asyncio.get_running_loop().create_connection(
        lambda: _Exchange(request, on_event), address.host, address.port
    )
    try:
        await exchange.finished
    finally:
        exchange.finished.cancel()  # should nobody wait for it any more
        transport.close()
    return exchange.answer


async def repeat(address: Address, path: str, body: dict[str, Any], *, connections: int, times: int) -> float:
    """The same request so many times, over a few connections that stay open. Returns the requests per second."""
    request, left = _request(address, path, body, "keep-alive"), iter(range(times))
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_repeat(address, request, left))
    return times / (time.perf_counter() - begun)


async def get(address: Address, path: str) -> dict[str, Any]:
    return await _exchange(address, f"{_head(address, 'GET', path)}Connection: close\r\n\r\n".encode())


async def post(address: Address, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request with its whole answer."""
    return await _exchange(address, _request(address, path, body, "close"))


async def _exchange(address: Address, request: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        answer: dict[str, Any] = json.loads(await _whole(reader))
        return answer
    finally:
        writer.close()


async def _repeat(address: Address, request: bytes, left: Iterator[int]) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for _ in left:
            writer.write(request)
            try:
                await _whole(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                # Some servers close a connection after so many requests.
                writer.close()
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(request)
                await _whole(reader)
    finally:
        writer.close()


async def _whole(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    if length is None:
        raise ChatFailed(f"an answer of unknown length: {head[:100]!r}")
    body = await reader.readexactly(int(length[1]))
    status, _, _ = head.partition(b"\r\n")
    if b" 200 " not in status:
        raise ChatFailed(f"{status.decode()}: {body[:300].decode(errors='replace')}")
    return body


def _request(address: Address, path: str, body: dict[str, Any], connection: str) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"{_head(address, 'POST', path)}Accept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: {connection}\r\n\r\n"
    )
    return head.encode() + content


def _head(address: Address, method: str, path: str) -> str:
    key = f"Authorization: Bearer {address.key}\r\n" if address.key else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n{key}"
