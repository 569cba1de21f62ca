"""All MCP servers of the settings: which tools they have, calls of these tools, and their counts."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import structlog

from paddock.config import McpServer
from paddock.errors import McpServerFailed, McpServerNotFound, PaddockError, PermissionDenied, StartupError
from paddock.mcp.client import Client, Target
from paddock.mcp.messages import CallResult, FoundTool
from paddock.tally import WAITS, Histogram

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECONDS_TO_CLOSE: Final = 10.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Listing:
    """What one server answered to the question for its tools."""

    server: str
    tools: list[FoundTool]
    error: McpServerFailed | None = None


def resolve(settings: Mapping[str, McpServer], environ: Mapping[str, str]) -> dict[str, Target]:
    """The servers with the values of their headers. Raises `StartupError` with the name of the header."""
    return {
        name: Target(
            server.url,
            tuple(
                (header, _value(text, f"server.mcp_servers.{name}.headers.{header}", environ))
                for header, text in server.headers.items()
            ),
            None if server.tools is None else tuple(server.tools),
            server.timeout,
            server.max_result_bytes,
        )
        for name, server in settings.items()
    }


def _value(text: str, where: str, environ: Mapping[str, str]) -> str:
    for name in _VARIABLE.findall(text):
        if name not in environ:
            raise StartupError(f"{where}: the environment variable {name} is not set")
    value = _VARIABLE.sub(lambda match: environ[match[1]], text)
    if not re.fullmatch(r"[\x20-\x7e]*", value) or value != value.strip():
        raise StartupError(f"{where}: a value has printable ASCII characters, and no space at either end")
    return value


class ToolServers:
    """Nothing is sent to a server before its tools are listed or called."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._clients: dict[str, Client] = {}
        self._targets = dict(targets)
        self._http: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self.calls: Counter[tuple[str, str, str]] = Counter()
        """By server, key and outcome: `ok`, `tool_error`, `left` or the code of an error."""
        self.seconds: dict[str, Histogram] = {}

    @property
    def names(self) -> list[str]:
        return list(self._targets)

    def replace(self, targets: Mapping[str, Target]) -> None:
        """Use these servers from now on. The sessions of unchanged ones continue, and so do running calls."""
        for name, client in list(self._clients.items()):
            if targets.get(name) != client.target:
                del self._clients[name]
                task = asyncio.ensure_future(client.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._targets = dict(targets)

    async def list_tools(self, names: list[str]) -> list[Listing]:
        """The tools of these servers. One that fails has an error, and does not disturb the others."""
        return await asyncio.gather(*(self._listing(name) for name in names))

    async def _listing(self, name: str) -> Listing:
        try:
            return Listing(name, await (await self._client(name)).tools())
        except McpServerFailed as error:
            _log.warning("tools not listed", mcp_server=name, error=error.code, reason=error.message)
            return Listing(name, [], error)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any], *, key: str) -> CallResult:
        """The result of a tool, which may be an error of the tool. `key`: who calls it.

        Raises `McpServerFailed`, `McpServerNotFound`, or `PermissionDenied` for a tool that the settings do not allow.
        """
        client = await self._client(server)
        if not client.target.allows(tool):
            raise PermissionDenied(f"the tool {tool!r} is not one of server.mcp_servers.{server}.tools", param="tool")
        begun, outcome = time.monotonic(), "left"
        try:
            result = await client.call(tool, arguments)
            outcome = "tool_error" if result.is_error else "ok"
            return result
        except PaddockError as error:
            outcome = error.code
            raise
        finally:
            seconds = time.monotonic() - begun
            self.calls[server, key, outcome] += 1
            self.seconds.setdefault(server, Histogram.of(WAITS)).observe(seconds)
            duration = round(seconds * 1000, 1)
            _log.info("tool called", mcp_server=server, tool=tool, key=key, outcome=outcome, duration_ms=duration)

    async def close(self) -> None:
        self.replace({})
        if self._closing:
            await asyncio.wait(self._closing, timeout=_SECONDS_TO_CLOSE)
        if self._http is not None:
            await self._http.aclose()

    async def _client(self, name: str) -> Client:
        http = await self._opened() if name in self._targets else None
        if http is None or name not in self._targets:  # a reload may have removed it meanwhile
            raise McpServerNotFound(f"there is no MCP server {name!r}", param="server")
        if name not in self._clients:
            self._clients[name] = Client(name, self._targets[name], http)
        return self._clients[name]

    async def _opened(self) -> httpx.AsyncClient:
        async with self._opening:
            if self._http is None:
                context = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
                self._http = httpx.AsyncClient(
                    verify=context,
                    trust_env=False,
                    follow_redirects=False,
                    timeout=None,  # noqa: S113  # the client limits the time of the whole
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30),
                )
            return self._http
