"""A streaming chat client light enough not to be what is measured: it stamps events, and decodes them afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# Escaped quotes in generated text cannot look like this, so a match is always the delta's own field.
_CONTENT = re.compile(rb'"(?:(?:reasoning_)?content|text)"\s*:\s*"(?!")')
CHAT = "/v1/chat/completions"


class ChatFailed(Exception):
    """The server refused, broke off or answered nothing."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """Of a refusal; 0 where it was none."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    tls: bool = False
    base: str = ""
    """What stands before every path."""
    api_key: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """Of a server; the `/v1` that clients are often given with it is no part of it."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if tls else 80), tls, base)

    def url(self, path: str) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.base}{path}"

    def head(self, method: str, path: str, connection: str) -> str:
        """The beginning of a request, without the empty line that ends it."""
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
        """Seconds; of an answer without a word, to its end."""
        return (self.times[0] if self.times else self.done) - self.sent

    @property
    def tokens(self) -> int:
        return int(self._last("usage").get("completion_tokens", len(self.times)))

    @property
    def prompt_tokens(self) -> int | None:
        """None where the server does not tell."""
        told = self._last("usage").get("prompt_tokens")
        return None if told is None else int(told)

    @property
    def output_tokens(self) -> int | None:
        """As the server counts them; None where it does not tell."""
        told = self._last("usage").get("completion_tokens")
        return None if told is None else int(told)

    @property
    def cached_tokens(self) -> int | None:
        """None where the server does not tell, neither as OpenAI does nor as llama-server."""
        details = self._last("usage").get("prompt_tokens_details") or {}
        told = details.get("cached_tokens", self._last("timings").get("cache_n"))
        return None if told is None else int(told)

    @property
    def text(self) -> str:
        return "".join(text for kind, text in self.deltas if kind == "content")

    @property
    def deltas(self) -> list[tuple[str, str]]:
        """What each event added, thoughts or content, in the order they came."""
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
        """The last that an event said of this; nothing where none did."""
        for payload in reversed(self.payloads):
            if b'"%b"' % field_name.encode() in payload and (found := json.loads(payload).get(field_name)):
                said: dict[str, Any] = found
                return said
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
        enough = self._leave_after is not None and len(self.answer.times) >= self._leave_after
        if self._response.ended or enough:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        whole = exc is None and self._response.ends_by_closing
        self._finish(None if whole else ChatFailed(f"the connection closed in the middle of an answer ({exc})"))

    def _finish(self, failure: ChatFailed | None) -> None:
        if self.finished.done():
            return
        status = self._response.status
        if status not in (0, 200):
            failure = ChatFailed(f"HTTP {status}: {self._response.body[:300].decode(errors='replace')}", status)
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
    """One streamed answer on a connection of its own; `on_event` hears how many events with content have come.

    Without `usage` it does not ask for the number of tokens, which some servers refuse. A model may end its answer
    before the first word, which is a failure unless it `may_be_empty`. To `leave_after` so many events is to close
    the connection then, with the answer so far.
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


async def get(address: Address, path: str) -> Any:
    """What is there, as JSON."""
    return await _exchange(address, f"{address.head('GET', path, 'close')}\r\n".encode())


async def post(address: Address, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request with its whole answer."""
    answer: dict[str, Any] = await _exchange(address, _request(address, path, body, "close"))
    return answer


async def first_model(address: Address) -> str:
    """The first that the server lists; one that lists none is expected to take any name."""
    listed = await look(address, "/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        return "default"


async def bits_per_weight(address: Address, model: str) -> float | None:
    """From the size and the parameters that llama.cpp's servers tell in `/v1/models`; None where they do not."""
    listed = await look(address, "/v1/models")
    found = listed.get("data") if isinstance(listed, dict) else None
    for each in found or ():
        meta = each.get("meta") or {}
        if each.get("id") == model and meta.get("size") and meta.get("n_params"):
            return float(8 * meta["size"] / meta["n_params"])
    return None


async def build_info(address: Address) -> str:
    """What a server says of its version, as llama.cpp's servers do; nothing where it doesn't."""
    props = await look(address, "/props")
    return str(props.get("build_info", "")) if isinstance(props, dict) else ""


async def count_tokens(address: Address, model: str, text: str) -> int | None:
    """As the server's `/tokenize` counts; None where it has none."""
    try:
        return len((await post(address, "/tokenize", {"model": model, "content": text}))["tokens"])
    except (ChatFailed, OSError, KeyError, TypeError):
        return None


async def look(address: Address, path: str) -> Any:
    """What is there, or None."""
    try:
        return await get(address, path)
    except (ChatFailed, OSError):
        return None


async def _exchange(address: Address, request: bytes) -> Any:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls or None)
    try:
        writer.write(request)
        body = await _whole(reader)
    except asyncio.IncompleteReadError as cut:
        raise ChatFailed("the connection closed in the middle of an answer") from cut
    finally:
        writer.close()
    try:
        return json.loads(body)
    except ValueError:
        raise ChatFailed(f"no JSON: {body[:100]!r}") from None


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
    if length:
        body = await reader.readexactly(int(length[1]))
    elif re.search(rb"transfer-encoding: *chunked", head, re.IGNORECASE):
        body = await _chunks(reader)
    else:
        raise ChatFailed(f"an answer of unknown length: {head[:100]!r}")
    first, _, _ = head.partition(b"\r\n")
    status = int(first.split()[1])
    if status != 200:
        raise ChatFailed(f"{first.decode()}: {body[:300].decode(errors='replace')}", status)
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    taken = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        taken += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return taken


def _request(address: Address, path: str, body: dict[str, Any], connection: str) -> bytes:
    content = json.dumps(body).encode()
    head = f"{address.head('POST', path, connection)}Content-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content
