"""Serves the files of a folder in place of the web page (`--path`)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.staticfiles import StaticFiles

from paddock.errors import StartupError

_PUBLIC_HIDDEN = ".well-known"


class _OnlyReading(APIRoute):
    """Matches GET and HEAD only: another method on an unknown path is a 404, not a 405."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, child = super().matches(scope)
        return (match if match is Match.FULL else Match.NONE), child


def static_routes(folder: Path) -> APIRouter:
    """The routes come after all others, so that no file hides a route. Anyone may read the files.

    Hidden files are not served, and neither are links that lead out of the folder.
    """
    if not folder.is_dir():
        raise StartupError(f"the folder {folder} of server.static_path (--path) does not exist")
    router = APIRouter(include_in_schema=False, route_class=_OnlyReading)
    files = StaticFiles(directory=folder, html=True)

    @router.api_route("/{path:path}", methods=["GET", "HEAD"])
    async def show_file(request: Request, path: str) -> Response:
        if any(part.startswith(".") and part != _PUBLIC_HIDDEN for part in PurePosixPath(path).parts):
            raise HTTPException(404)
        try:
            response = await files.get_response(files.get_path(request.scope), request.scope)
        except PermissionError:
            raise HTTPException(404) from None
        except HTTPException as error:
            raise HTTPException(404 if error.status_code == 401 else error.status_code) from None
        response.headers["Cache-Control"] = "no-cache"
        return response

    return router
