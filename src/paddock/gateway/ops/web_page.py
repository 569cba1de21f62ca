"""Serves the web page and the API reference, with a policy that allows requests to this server only."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

import paddock
from paddock.errors import NotFound, NotSupported

_BUILT: Final = Path(paddock.__file__).parent / "page"
_REFERENCE: Final = Path(__file__).parent / "reference"
_NO_SERVICE_WORKER: Final = Path(__file__).parent / "no_service_worker.js"
_INDEX: Final = "index.html"
_PREVIEW: Final = "preview.html"
_DIAGRAM: Final = "diagram.html"
_SINGLE: Final = (
    "icon.svg",
    "icon-192.png",
    "icon-512.png",
    "icon-maskable-512.png",
    "manifest.webmanifest",
    "page-worker.js",
    _PREVIEW,
    _DIAGRAM,
)
"""The files beside the page. Their names are known elsewhere, so they have no hash."""
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # The user's own images and audio, which are shown from memory.
        "img-src 'self' data: blob:",
        "media-src blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
# Of the frame that shows HTML which a model wrote: its scripts run without an origin and without a network.
_PREVIEW_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "media-src data: blob:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        "sandbox allow-scripts",
    )
)
# Of the frame that draws diagrams: it runs its own script, and the library that the page sends, as a blob. Text that a
# model wrote runs nothing.
_DIAGRAM_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src {hashes} blob:",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        "sandbox allow-scripts",
    )
)
_INLINE_SCRIPT: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
# Not Python's table, which depends on the machine: browsers refuse scripts of another type.
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".webmanifest": "application/manifest+json",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}
# Their names contain a hash of the content, so they never change.
_FOREVER: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"


@dataclass(frozen=True)
class StaticFile:
    """A static file, with its headers."""

    name: str
    content: bytes

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:32]

    @cached_property
    def compressed(self) -> bytes | None:
        """None if that is not smaller, as for fonts and images."""
        compressed = gzip.compress(self.content, mtime=0)
        return compressed if len(compressed) < len(self.content) else None

    @cached_property
    def _policy(self) -> str:
        if self.name == _PREVIEW:
            return _PREVIEW_POLICY
        if self.name == _DIAGRAM:
            digests = (hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(self.content))
            hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
            return _DIAGRAM_POLICY.format(hashes=hashes)
        return _POLICY

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Cache-Control": _FOREVER if self.name.startswith("assets/") else _ASK_AGAIN,
            "Content-Security-Policy": self._policy,
            "Vary": "Accept-Encoding",
        }


def page_routes(folder: Path = _BUILT) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    # Read at the start, so that an upgrade does not mix two versions.
    files = _read(folder)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def show_page(request: Request) -> Response:
        if _INDEX not in files:
            raise NotSupported("the web page is not built: `make page` in the source of Paddock builds it, with Node")
        return await send_file(request, files[_INDEX])

    async def show_single(request: Request) -> Response:
        return await send_file(request, files.get(request.url.path.rpartition("/")[2]))

    for name in _SINGLE:
        router.add_api_route(f"/{name}", show_single, methods=["GET", "HEAD"])

    @router.api_route("/assets/{name}", methods=["GET", "HEAD"])
    async def show_asset(request: Request, name: str) -> Response:
        return await send_file(request, files.get(f"assets/{name}"))

    return router


def service_worker_routes() -> APIRouter:
    """`/sw.js`: where a browser looks for a newer version of the service worker of llama-server's page."""
    router = APIRouter(include_in_schema=False)
    file = StaticFile("sw.js", _NO_SERVICE_WORKER.read_bytes())

    @router.api_route("/sw.js", methods=["GET", "HEAD"])
    async def show_service_worker(request: Request) -> Response:
        return await send_file(request, file)

    return router


def reference_routes(build: Callable[[], dict[str, Any]]) -> APIRouter:
    """`/docs`: the API reference, which the browser makes from `/openapi.json`."""
    router = APIRouter(include_in_schema=False)
    files = _read(_REFERENCE)
    page = files.pop("reference.html")
    described: StaticFile | None = None
    building = asyncio.Lock()

    @router.api_route("/docs", methods=["GET", "HEAD"])
    @router.api_route("/redoc", methods=["GET", "HEAD"])
    async def show_reference(request: Request) -> Response:
        return await send_file(request, page)

    @router.api_route("/docs/{name}", methods=["GET", "HEAD"])
    async def show_part(request: Request, name: str) -> Response:
        return await send_file(request, files.get(name))

    @router.api_route("/openapi.json", methods=["GET", "HEAD"])
    async def show_description(request: Request) -> Response:
        nonlocal described
        async with building:
            if described is None:  # built once, on a thread: it takes longer than any stream should wait
                content = await asyncio.to_thread(lambda: msgspec.json.encode(build()))
                described = StaticFile("openapi.json", content)
        return await send_file(request, described)

    return router


def _read(folder: Path) -> dict[str, StaticFile]:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {name: StaticFile(name, (folder / name).read_bytes()) for name in names}


async def send_file(request: Request, file: StaticFile | None) -> Response:
    if file is None:
        raise NotFound(f"File Not Found: there is no route {request.method} {request.url.path}")
    body, headers, tag = file.content, file.headers, file.digest
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        # Compression takes tens of milliseconds, so it runs on a thread.
        compressed = await asyncio.to_thread(lambda: file.compressed)
        if compressed is not None:
            body, tag = compressed, f"{tag}-gzip"
            headers["Content-Encoding"] = "gzip"
    headers["ETag"] = f'"{tag}"'
    if _knows(request.headers.get("if-none-match", ""), tag):
        headers.pop("Content-Encoding", None)
        return Response(status_code=304, headers=headers)
    media_type = _TYPES.get(PurePosixPath(file.name).suffix, "application/octet-stream")
    return Response(body, headers=headers, media_type=media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether `Accept-Encoding` allows gzip, by name or by `*`."""
    allowed = {}
    for item in accepted.lower().split(","):
        name, _, parameter = item.partition(";")
        allowed[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", parameter) is None
    return allowed.get("gzip", allowed.get("*", False))


def _knows(tags: str, tag: str) -> bool:
    """Whether `If-None-Match` has this tag."""
    return tags.strip() == "*" or f'"{tag}"' in re.findall(r'"[^"]*"', tags)
