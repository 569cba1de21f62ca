"""The tools of the MCP servers of the settings: a list, and calls."""

from __future__ import annotations

from typing import Final

from paddock.gateway.dialects.dialect import Dialect
from paddock.gateway.dialects.mcp.routes import tool_routes

MCP: Final = Dialect(
    tag="mcp",
    routers=lambda services: [tool_routes(services)],
    # A key uses those servers that its settings name.
    permissions={"key": ["GET /v1/mcp/tools", "POST /v1/mcp/call"]},
)
