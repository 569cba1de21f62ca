"""All routes below a path (`--api-prefix`)."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paddock.errors import NotFound
from paddock.gateway.http.request_context import log_refusal
from paddock.gateway.http.responses import error_response


class PathPrefix:
    """Removes the prefix, so that the application knows its own paths only, and adds it to redirects."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path == self._prefix and scope["method"] in ("GET", "HEAD"):
            await RedirectResponse(f"{self._prefix}/")(scope, receive, send)
            return
        if not path.startswith(f"{self._prefix}/"):
            route = f"{scope['method']} {path}"
            error = NotFound(f"File Not Found: there is no route {route}, all routes are below {self._prefix}")
            log_refusal(error)
            await error_response(error, scope)(scope, receive, send)
            return
        scope["path"] = path.removeprefix(self._prefix)
        if raw := scope.get("raw_path"):
            scope["raw_path"] = raw.removeprefix(self._prefix.encode())

        async def send_with_prefix(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if (target := headers.get("location")) is not None:
                    url = urlsplit(target)
                    headers["location"] = url._replace(path=self._prefix + url.path).geturl()
            await send(message)

        await self._app(scope, receive, send_with_prefix)
