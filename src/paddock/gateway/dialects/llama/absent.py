"""Routes of llama-server that this server refuses with a reason."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.errors import FeatureDisabled, InvalidRequest, NotSupported
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields

_REASONING_END = "reasoning_end"


class ControlRequest(BodyFields):
    """Changes a running chat completion."""

    model: str | None = None
    id: str = ""
    action: str = ""


def absent_routes(services: Services) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions/control", include_in_schema=False)
    @router.post("/chat/completions/control", include_in_schema=False)
    async def control_chat_completion(request: Request) -> Response:
        """Refused: the reasoning of a running answer cannot be ended."""
        body = await read_body(request, ControlRequest, limit=services.settings.max_body_bytes)
        if not body.id:
            raise InvalidRequest("missing completion id", param="id")
        if body.action != _REASONING_END:
            raise InvalidRequest(f"unknown control action {body.action!r}: use {_REASONING_END!r}", param="action")
        raise NotSupported(
            "the reasoning of a running completion cannot be ended: close the connection, and ask again with "
            "reasoning_effort 'none'"
        )

    @router.get("/tools", include_in_schema=False)
    @router.post("/tools", include_in_schema=False)
    async def use_server_tools() -> Response:
        """Refused: the server has no built-in tools."""
        raise FeatureDisabled(
            "this feature is disabled: Paddock has no built-in tools (--tools); those of its MCP servers are at "
            "/v1/mcp/tools"
        )

    @router.get("/cors-proxy", include_in_schema=False)
    @router.post("/cors-proxy", include_in_schema=False)
    async def proxy_to_mcp_server() -> Response:
        """Refused: the server sends no requests for web pages."""
        raise FeatureDisabled("this feature is disabled: Paddock is no proxy for web pages (--ui-mcp-proxy)")

    return router


ABSENT_ROUTES = (
    *("POST /v1/chat/completions/control", "POST /chat/completions/control"),
    *("GET /tools", "POST /tools", "GET /cors-proxy", "POST /cors-proxy"),
)
