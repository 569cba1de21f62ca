"""`/v1/mcp`: the tools of MCP servers. Each caller sees and calls those of the servers that its key may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from paddock.errors import OriginNotAllowed, PermissionDenied
from paddock.gateway.auth.caller import ANONYMOUS_ADMIN, Caller, caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.gateway.http.scope import FOREIGN
from paddock.mcp import Listing, function_names

_Name = Annotated[str, Field(min_length=1, max_length=256)]


class ToolCallRequest(BodyFields):
    server: _Name
    """The name of the MCP server."""
    tool: _Name
    """The tool's own name."""
    arguments: dict[str, Any] = Field(default={})


class McpFunction(msgspec.Struct):
    name: str
    description: str
    parameters: Mapping[str, Any]


class McpTool(msgspec.Struct, kw_only=True):
    """A function tool for a chat completion, and where it is called."""

    type: Literal["function"] = "function"
    function: McpFunction
    server: str
    tool: str


class McpServerProblem(msgspec.Struct):
    message: str
    code: str


class McpServerState(msgspec.Struct):
    name: str
    tools: int
    error: McpServerProblem | None
    """Why the server has not listed its tools."""


class McpTools(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[McpTool]
    servers: list[McpServerState]


class ToolCallResult(msgspec.Struct):
    content: str
    is_error: bool
    """Whether the tool reports an error; `content` says which."""


def tool_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["mcp"])
    tools = services.tools

    @router.get("/v1/mcp/tools", **describe(McpTools))
    async def list_tools(request: Request) -> Response:
        """The tools of all MCP servers that the key may use, as function tools. Asks these servers; one that fails has
        an `error`. Loads no model.
        """
        caller = _trusted(request)
        names = [name for name in tools.names if caller.may_use_tools_of(name)]
        listings = await until_disconnect(request, tools.list_tools(names))
        return JSON(
            McpTools(
                data=[tool for listing in listings for tool in _functions(listing)],
                servers=[_state(listing) for listing in listings],
            )
        )

    @router.post("/v1/mcp/call", **describe(ToolCallResult, body=ToolCallRequest))
    async def call_tool(request: Request) -> Response:
        """Call a tool of an MCP server. Closing the connection cancels the call."""
        caller = _trusted(request)
        body = await read_body(request, ToolCallRequest, limit=services.settings.max_body_bytes)
        if not caller.may_use_tools_of(body.server):
            raise PermissionDenied(f"this API key may not use the MCP server {body.server!r}", param="server")
        call = tools.call(body.server, body.tool, body.arguments, key=caller.name)
        result = await until_disconnect(request, call)
        return JSON(ToolCallResult(result.text, result.is_error))

    return router


def _trusted(request: Request) -> Caller:
    """The caller. Tools act with the rights of the server, so pages of other origins need a key."""
    caller = caller_of(request)
    if caller is ANONYMOUS_ADMIN and FOREIGN in request.scope:
        raise OriginNotAllowed(
            "web pages of other origins may not use tools on a server without API keys, even if server.cors_origins "
            "names them: set a key with --api-key"
        )
    return caller


def _functions(listing: Listing) -> list[McpTool]:
    names = function_names(listing.server, [tool.name for tool in listing.tools])
    return [
        McpTool(function=McpFunction(name, tool.description, tool.schema), server=listing.server, tool=tool.name)
        for name, tool in zip(names, listing.tools, strict=True)
    ]


def _state(listing: Listing) -> McpServerState:
    error = listing.error
    problem = None if error is None else McpServerProblem(error.message, error.code)
    return McpServerState(listing.server, len(listing.tools), problem)
