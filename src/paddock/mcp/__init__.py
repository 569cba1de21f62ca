"""MCP servers (Model Context Protocol): their tools are listed and called over streamable HTTP."""

from paddock.mcp.messages import CallResult, FoundTool, function_names
from paddock.mcp.servers import Listing, ToolServers, resolve
