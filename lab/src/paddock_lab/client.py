"""A streaming chat client with little overhead: it timestamps events, and decodes them after the measurement."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# Quotes in generated text are escaped, so a match is always a field of the delta.
_CONTENT = re.compile(rb'"(?:(?:reasoning_)?content|text)"\s*:\s*"(?!")')
CHAT = "/v1/chat/completions"
_CLOSED = "the connection closed in the middle of an answer"


class ChatFailed(Exception):
    """The server refused the request, broke off the response or sent an empty one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of an error response, else 0."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    tls: bool = False
    base: str = ""
    """The path prefix of all routes."""
    api_key: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """From the URL of a server. A `/v1` at the end, which many clients are configured with, is removed."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if tls else 80), tls, base)

    def url(self, path: str) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.base}{path}"

    def head(self, method: str, path: str, connection: str) -> str:
        """The request line and the headers, without the empty line after them."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        return (
            f"{method} {self.base}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAccept: */*\r\n"
            f"{key}Connection: {connection}\r\n"
        )


@dataclass
class Answer:
    sent: float = 0.0
    done: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each event with content arrived."""
    payloads: list[bytes] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        """Seconds to the first token, or to the end of an empty answer."""
        return (self.times[0] if self.times else self.done) - self.sent

    @property
    def tokens(self) -> int:
        """As the server reports them; without a report, the number of events."""
        return len(self.times) if self.output_tokens is None else self.output_tokens

    @property
    def prompt_tokens(self) -> int | None:
        """None if the server does not report them."""
        return self._last("usage").get("prompt_tokens")

    @property
    def output_tokens(self) -> int | None:
        """None if the server does not report them."""
        return self._last("usage").get("completion_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """As OpenAI or llama-server report them; None if the server does neither."""
        details = self._last("usage").get("prompt_tokens_details") or {}
        return details.get("cached_tokens", self._last("timings").get("cache_n"))

    @property
    def drafted_tokens(self) -> tuple[int, int] | None:
        """Guessed tokens, and those of them that were accepted; None if the server reports none."""
        timings = self._last("timings")
        drafted, accepted = timings.get("draft_n"), timings.get("draft_n_accepted")
        return None if drafted is None or accepted is None else (drafted, accepted)

    @property
    def text(self) -> str:
        return "".join(text for kind, text in self.deltas if kind == "content")

    @property
    def deltas(self) -> list[tuple[str, str]]:
        """The reasoning or content of each event, in order."""
        choices = (choice for event in self._events() for choice in event.get("choices", ()))
        deltas = (choice.get("delta") or {"content": choice.get("text")} for choice in choices)
        return [
            (kind, text) for delta in deltas for kind in ("reasoning_content", "content") if (text := delta.get(kind))
        ]

    @property
    def finish_reason(self) -> str | None:
        reasons = (choice.get("finish_reason") for event in self._events() for choice in event.get("choices", ()))
        return next((str(reason) for reason in reasons if reason), None)

    def _events(self) -> Iterator[dict[str, Any]]:
        yield from (json.loads(payload) for payload in self.payloads if payload != b"[DONE]")

    def _last(self, field_name: str) -> dict[str, Any]:
        """The last value of this field in any event; empty if there is none."""
        for payload in reversed(self.payloads):
            if b'"%b"' % field_name.encode() in payload and (found := json.loads(payload).get(field_name)):
                value: dict[str, Any] = found
                return value
        return {}


class Response:
    """Parses an HTTP response that arrives in pieces of any size."""

    def __init__(self) -> None:
        self.status = 0
        self.ended = False
        self._raw = bytearray()
        self._chunked = False
        self._left: int | None = None

    @property
    def ends_by_closing(self) -> bool:
        return self.status != 0 and not self._chunked and self._left is None

    def feed(self, piece: bytes) -> bytes:
        """The part of the body that this piece completes."""
        self._raw += piece
        if not self.status and not self._take_head():
            return b""
        return self._take_chunks() if self._chunked else self._take_plain()

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


class EventLines:
    """Splits a body that arrives in pieces into the payloads of its `data:` lines."""

    def __init__(self) -> None:
        self._line = b""

    def feed(self, body: bytes) -> list[bytes]:
        *lines, self._line = (self._line + body).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class _Exchange(asyncio.Protocol):
    def __init__(
        self,
        request: bytes,
        on_event: Callable[[int], object] | None,
        *,
        may_be_empty: bool,
        leave_after: int | None,
    ) -> None:
        self.answer = Answer()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._on_event = on_event
        self._may_be_empty = may_be_empty
        self._leave_after = leave_after
        self._response, self._lines = Response(), EventLines()
        self._error_body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.answer.sent = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        body, payloads = self._response.feed(data), list[bytes]()
        if self._response.status == 200:
            payloads = self._lines.feed(body)
        else:
            self._error_body += body
        for payload in payloads:
            if _CONTENT.search(payload):
                self.answer.times.append(now)
                if self._on_event:
                    self._on_event(len(self.answer.times))
        if payloads:
            self.answer.done = now
            self.answer.payloads += payloads
        enough = self._leave_after is not None and len(self.answer.times) >= self._leave_after
        if self._response.ended or enough:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        whole = exc is None and self._response.ends_by_closing
        self._finish(None if whole else ChatFailed(f"{_CLOSED} ({exc})"))

    def _finish(self, failure: ChatFailed | None) -> None:
        if self.finished.done():
            return
        status = self._response.status
        if status not in (0, 200):
            failure = _error_response(status, self._error_body)
        broken = next((payload for payload in self.answer.payloads[-2:] if payload.startswith(b'{"error"')), None)
        if broken or not (failure or self.answer.times or (self._may_be_empty and self.answer.payloads)):
            failure = ChatFailed(f"the answer failed or was empty: {(broken or b'').decode(errors='replace')}")
        if failure:
            self.finished.set_exception(failure)
        else:
            self.finished.set_result(None)


async def stream(
    address: Address,
    body: dict[str, Any],
    on_event: Callable[[int], object] | None = None,
    *,
    usage: bool = True,
    may_be_empty: bool = False,
    leave_after: int | None = None,
) -> Answer:
    """Stream one answer on a new connection. `on_event` gets the number of events with content so far.

    `usage` requests the number of tokens, which some servers refuse. An empty answer is a failure unless it
    `may_be_empty`. `leave_after` closes the connection after this many events and returns the answer so far.
    """
    options = {"stream_options": {"include_usage": True}} if usage else {}
    request = _request(address, CHAT, {**body, "stream": True, **options}, "close")
    transport, exchange = await asyncio.get_running_loop().create_connection(
        lambda: _Exchange(request, on_event, may_be_empty=may_be_empty, leave_after=leave_after),
        address.host,
        address.port,
        ssl=address.tls or None,
    )
    try:
        await exchange.finished
    finally:
        exchange.finished.cancel()  # if this task was cancelled
        transport.close()
    return exchange.answer


async def repeat(address: Address, path: str, body: dict[str, Any], *, connections: int, times: int) -> float:
    """Send the same request `times` times over a few keep-alive connections. Returns the requests per second."""
    request, left = _request(address, path, body, "keep-alive"), iter(range(times))
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_repeat(address, request, left))
    return times / (time.perf_counter() - begun)


async def get(address: Address, path: str) -> Any:
    """The JSON response."""
    return await _exchange(address, f"{address.head('GET', path, 'close')}\r\n".encode())


async def post(address: Address, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request that is not streamed."""
    answer: dict[str, Any] = await _exchange(address, _request(address, path, body, "close"))
    return answer


async def first_model(address: Address) -> str:
    """The first model that the server lists. A server that lists none is expected to accept any name."""
    listed = await look(address, "/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        return "default"


async def bits_per_weight(address: Address, model: str) -> float | None:
    """From the size and the parameters in `/v1/models` of llama.cpp-compatible servers; None without them."""
    listed = await look(address, "/v1/models")
    found = listed.get("data") if isinstance(listed, dict) else None
    for each in found or ():
        meta = each.get("meta") or {}
        if each.get("id") == model and meta.get("size") and meta.get("n_params"):
            return float(8 * meta["size"] / meta["n_params"])
    return None


async def build_info(address: Address) -> str:
    """The version in `/props` of llama.cpp-compatible servers; empty without it."""
    props = await look(address, "/props")
    return str(props.get("build_info", "")) if isinstance(props, dict) else ""


async def count_tokens(address: Address, model: str, text: str) -> int | None:
    """As the server's `/tokenize` counts; None if it has no such route."""
    try:
        return len((await post(address, "/tokenize", {"model": model, "content": text}))["tokens"])
    except (ChatFailed, OSError, KeyError, TypeError):
        return None


async def look(address: Address, path: str) -> Any:
    """The JSON response, or None if there is none."""
    try:
        return await get(address, path)
    except (ChatFailed, OSError):
        return None


async def _exchange(address: Address, request: bytes) -> Any:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls or None)
    try:
        writer.write(request)
        body = await _read_response(reader)
    finally:
        writer.close()
    try:
        return json.loads(body)
    except ValueError:
        raise ChatFailed(f"the response is not JSON: {body[:100]!r}") from None


async def _repeat(address: Address, request: bytes, left: Iterator[int]) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for _ in left:
            writer.write(request)
            try:
                await _read_response(reader)
            except (ChatFailed, ConnectionError) as failure:
                if isinstance(failure, ChatFailed) and failure.status:
                    raise
                # Some servers close a connection after a number of requests.
                writer.close()
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(request)
                await _read_response(reader)
    finally:
        writer.close()


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    """The whole body. Raises `ChatFailed` if the status is not 200 or the connection closes early."""
    response, body = Response(), b""
    while not response.ended:
        piece = await reader.read(1 << 16)
        if not piece and not response.ends_by_closing:
            raise ChatFailed(_CLOSED)
        body += response.feed(piece)
        response.ended |= not piece
    if response.status != 200:
        raise _error_response(response.status, body)
    return body


def _error_response(status: int, body: bytes) -> ChatFailed:
    return ChatFailed(f"HTTP {status}: {body[:300].decode(errors='replace')}", status)


def _request(address: Address, path: str, body: dict[str, Any], connection: str) -> bytes:
    content = json.dumps(body).encode()
    head = f"{address.head('POST', path, connection)}Content-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content
