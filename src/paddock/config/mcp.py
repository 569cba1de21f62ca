"""The settings of MCP servers, whose tools the server calls for its clients."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from paddock.config.fields import Section, Size, http_token

_RESERVED = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding"}
    | {"mcp-protocol-version", "mcp-session-id"}
)
"""Headers that the client sets itself."""


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s?#@]+([/?][^\s#]*)?", value):
        raise ValueError(
            "expected the URL of an MCP server, such as http://127.0.0.1:9000/mcp, without user or password"
        )
    return value


def _header(value: str) -> str:
    if http_token(value).lower() in _RESERVED:
        raise ValueError(f"the header {value} is set by the server itself")
    return http_token(value)


def server_name(value: str) -> str:
    """It becomes a part of the names of functions."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", value):
        raise ValueError("a name has at most 32 letters, digits and _ -, and begins with a letter or digit")
    return value


ServerName = Annotated[str, AfterValidator(server_name)]


class McpServer(Section):
    """One MCP server that is reached over streamable HTTP."""

    url: Annotated[str, AfterValidator(_url)]
    """The URL of its endpoint, such as `https://tools.example.org/mcp`. Redirects are not followed."""
    headers: dict[Annotated[str, AfterValidator(_header)], str] = Field({}, repr=False)
    """Headers of every request, such as `Authorization`. `${NAME}` in a value stands for that environment variable."""
    tools: list[str] | None = None
    """Names or patterns (`read_*`) of the tools that may be used. Without it: all of its tools."""
    timeout: float = Field(60, gt=0, le=3600)
    """The most seconds that a call, or a list of its tools, may take."""
    max_result_bytes: Size = 1024 * 1024
    """The most bytes of the answer to a call; a longer one is an error."""


def named_url(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of a server on the command line, `NAME=URL`."""
    name, equals, url = text.partition("=")
    if not equals:
        raise ValueError("expected NAME=URL, such as notes=http://127.0.0.1:9000/mcp")
    return name, {"url": url}
