"""The client of one MCP server. It opens a session at its first request, and another when the server forgets it."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import httpx

from paddock import __version__
from paddock.errors import McpServerFailed, McpServerTimeout, McpServerUnreachable, PaddockError
from paddock.mcp import messages
from paddock.mcp.messages import BadMessage, CallResult, EventReader, FoundTool, RemoteError

_LARGEST_LIST: Final = 4 * 1024 * 1024
"""Bytes of one page of the tools."""
_MOST_TOOLS: Final = 1024
_MOST_PAGES: Final = 64
_SECONDS_TO_CLOSE: Final = 5.0
_LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Target:
    """A server as it is configured, with the values of its headers."""

    url: str
    headers: tuple[tuple[str, str], ...]
    tools: tuple[str, ...] | None
    """Names or patterns; None: all."""
    timeout: float
    max_result_bytes: int

    def allows(self, tool: str) -> bool:
        return self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)


@dataclass(frozen=True, slots=True)
class _Session:
    id: str
    """Empty: the server has no sessions."""
    version: str

    @property
    def headers(self) -> dict[str, str]:
        version = {"MCP-Protocol-Version": self.version}
        return version | ({"Mcp-Session-Id": self.id} if self.id else {})


class _SessionLost(Exception):
    """The server does not know the session any more."""


class Client:
    def __init__(self, name: str, target: Target, http: httpx.AsyncClient) -> None:
        """`http` follows no redirects and has no timeouts of its own."""
        self.name, self.target = name, target
        self._http = http
        self._numbers = itertools.count(1)
        self._opening = asyncio.Lock()
        self._session: _Session | None = None
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._notices: set[asyncio.Task[None]] = set()

    async def tools(self) -> list[FoundTool]:
        """The tools that may be used. Raises `McpServerFailed`."""
        found: list[FoundTool] = []
        cursor: str | None = None
        async with self._bounded():
            for _ in range(_MOST_PAGES):
                params = {} if cursor is None else {"cursor": cursor}
                page, cursor = messages.tools_in(await self._request("tools/list", params, _LARGEST_LIST))
                found += page
                if len(found) > _MOST_TOOLS:
                    raise BadMessage(f"more than {_MOST_TOOLS} tools")
                if cursor is None:
                    return [tool for tool in found if self.target.allows(tool.name)]
        raise McpServerFailed(f"the MCP server {self.name!r} lists its tools in more than {_MOST_PAGES} pages")

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallResult:
        """An error of the tool is a result too. Raises `McpServerFailed`."""
        params = {"name": tool, "arguments": arguments}
        async with self._bounded():
            try:
                return messages.result_of(await self._request("tools/call", params, self.target.max_result_bytes))
            except RemoteError as error:
                return CallResult(str(error), is_error=True)

    async def close(self) -> None:
        """End the session when no request runs any more."""
        await self._idle.wait()
        if self._notices:
            await asyncio.wait(self._notices, timeout=_SECONDS_TO_CLOSE)
        session, self._session = self._session, None
        if session is not None and session.id:
            try:
                async with asyncio.timeout(_SECONDS_TO_CLOSE):
                    await self._http.delete(self.target.url, headers=self._headers(session))
            except (httpx.HTTPError, TimeoutError):
                pass  # the server forgets it in time

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _request(self, method: str, params: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
        session = await self._opened()
        try:
            return (await self._exchange(session, method, params, limit))[0]
        except _SessionLost:
            self._forget(session)
        # The server has not seen the request.
        try:
            return (await self._exchange(await self._opened(), method, params, limit))[0]
        except _SessionLost:
            raise McpServerFailed(
                f"the MCP server {self.name!r} does not know the session that it has just begun"
            ) from None

    async def _opened(self) -> _Session:
        async with self._opening:
            if self._session is None:
                client = {"name": "paddock", "version": __version__}
                params = {"protocolVersion": messages.PROTOCOL, "capabilities": {}, "clientInfo": client}
                result, session_id = await self._exchange(None, "initialize", params, _LARGEST_LIST)
                version = result.get("protocolVersion")
                if version not in messages.UNDERSTOOD:
                    raise BadMessage(f"the protocol version {str(version)[:40]!r}, which Paddock does not know")
                if not re.fullmatch(r"[\x21-\x7e]{0,1024}", session_id):
                    raise BadMessage("a session id that is no visible ASCII")
                session = _Session(session_id, str(version))
                await self._post(messages.notification("notifications/initialized", {}), session)
                self._session = session
            return self._session

    def _forget(self, session: _Session | None) -> None:
        if self._session is session:
            self._session = None

    async def _exchange(
        self, session: _Session | None, method: str, params: Mapping[str, Any], limit: int
    ) -> tuple[Mapping[str, Any], str]:
        """The result of one request, and the session id of the response."""
        number = next(self._numbers)
        content = messages.request(number, method, params)
        try:
            async with self._http.stream(
                "POST", self.target.url, content=content, headers=self._headers(session)
            ) as response:
                self._check(response, session)
                session_id = response.headers.get("mcp-session-id", "")
                async for data in _bodies(response, limit):
                    found = messages.decode(data)
                    if (result := messages.result_in(found, number)) is not None:
                        return result, session_id
                    for message in filter(messages.is_request, found):
                        place = session or _Session(session_id, messages.PROTOCOL)
                        self._notify(self._post(messages.reply_to(message), place))
        except asyncio.CancelledError:
            if method == "tools/call":
                notice = messages.notification("notifications/cancelled", {"requestId": number})
                self._notify(self._post(notice, session))
            raise
        raise BadMessage("no response to the request")

    def _check(self, response: httpx.Response, session: _Session | None) -> None:
        if response.status_code == 404 and session is not None and session.id:
            raise _SessionLost
        if response.status_code != 200:
            self._forget(session)
            raise McpServerFailed(f"the MCP server {self.name!r} answered with the HTTP status {response.status_code}")

    async def _post(self, content: bytes, session: _Session | None) -> None:
        """Send a message that has no response."""
        async with self._http.stream(
            "POST", self.target.url, content=content, headers=self._headers(session)
        ) as response:
            if response.status_code >= 400:
                raise McpServerFailed(
                    f"the MCP server {self.name!r} answered with the HTTP status {response.status_code}"
                )

    def _notify(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send it in the background; whether it arrives does not matter."""

        async def send() -> None:
            try:
                async with asyncio.timeout(_SECONDS_TO_CLOSE):
                    await sending
            except (httpx.HTTPError, TimeoutError, PaddockError):
                pass

        task = asyncio.ensure_future(send())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    def _headers(self, session: _Session | None) -> dict[str, str]:
        return {
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"paddock/{__version__}",
            **dict(self.target.headers),
            **(session.headers if session is not None else {}),
        }

    # ── limits and errors ────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Limits the time, and turns every failure into an error, whose message does not show the server's address."""
        self._running += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(self.target.timeout):
                yield
        except TimeoutError:
            raise McpServerTimeout(
                f"the MCP server {self.name!r} took longer than {self.target.timeout:g} s "
                f"(server.mcp_servers.{self.name}.timeout)"
            ) from None
        except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
            raise McpServerUnreachable(
                f"the MCP server {self.name!r} cannot be reached: {type(error).__name__}"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise McpServerFailed(
                f"the connection to the MCP server {self.name!r} failed: {type(error).__name__}"
            ) from None
        except BadMessage as error:
            raise McpServerFailed(f"the MCP server {self.name!r} sent {error}"[:_LONGEST_REASON]) from None
        except RemoteError as error:
            raise McpServerFailed(f"the MCP server {self.name!r} refused: {error}"[:_LONGEST_REASON]) from None
        finally:
            self._running -= 1
            if self._running == 0:
                self._idle.set()


async def _bodies(response: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """The body, or the data of each event, as they arrive."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "text/event-stream"):
        raise BadMessage(f"the media type {kind[:80]!r}")
    is_stream, reader, body, size = kind == "text/event-stream", EventReader(), bytearray(), 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > limit:
            raise BadMessage(f"more than {limit} bytes")
        if is_stream:
            for data in reader.feed(piece):
                yield data
        else:
            body += piece
    if not is_stream:
        yield bytes(body)
