"""The files of the web page over HTTP: content types, caching and the content policy."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import httpx
import pytest
from fastapi import FastAPI

import paddock
from paddock.errors import PaddockError
from paddock.gateway.http.responses import on_paddock_error
from paddock.gateway.ops.web_page import page_routes
from tests.server import Server

BUILT = Path(paddock.__file__).parent / "page"
NAMES = sorted(path.relative_to(BUILT).as_posix() for path in BUILT.rglob("*") if path.is_file())
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".webmanifest": "application/manifest+json",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}
PLAIN = {"accept-encoding": "identity"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("page") / "config.json"
    file.write_text(json.dumps({"server": {"keys": {"boss": {"key": "boss", "admin": True}}}}))
    with Server("-m", "fake:", "--config", str(file)) as server:
        yield server


def _address(name: str) -> str:
    return "/" if name == "index.html" else f"/{name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served_without_a_key(server: Server, name: str) -> None:
    response = server.client.get(_address(name), headers=PLAIN)
    assert response.status_code == 200
    assert response.content == (BUILT / name).read_bytes()
    assert response.headers["content-type"] == TYPES[PurePosixPath(name).suffix]
    assert response.headers["x-content-type-options"] == "nosniff"
    head = server.client.head(_address(name), headers=PLAIN)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(response.content))


def test_the_page_loads_nothing_from_other_servers(server: Server) -> None:
    page = server.client.get("/", headers={"accept": "text/html"})
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert addresses
    for address in addresses:
        assert address.startswith("./"), "relative, so that a proxy can serve it below a path"
        assert server.client.get(address.removeprefix(".")).status_code == 200


def test_the_page_has_a_strict_content_policy(server: Server) -> None:
    for name in NAMES:
        if name in ("diagram.html", "preview.html"):
            continue
        policy = server.client.get(_address(name)).headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert not [part for part in policy if "unsafe" in part or "*" in part or "http" in part]
    for path in ("/docs", "/redoc", "/docs/reference.js"):
        assert server.client.get(path).headers["content-security-policy"].split("; ") == policy
    for path in ("/health", "/assets/none.js"):
        assert "content-security-policy" not in server.client.get(path).headers


def test_a_preview_has_no_origin_and_no_network(server: Server) -> None:
    policy = server.client.get("/preview.html").headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "sandbox allow-scripts", "frame-ancestors 'self'"} <= set(policy)
    assert not [part for part in policy if part.startswith("connect-src") or "http" in part or "*" in part]


def test_the_frame_of_a_diagram_runs_its_own_script_only(server: Server) -> None:
    response = server.client.get("/diagram.html")
    policy = response.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "sandbox allow-scripts", "frame-ancestors 'self'"} <= set(policy)
    assert not [part for part in policy if part.startswith(("connect-src", "img-src")) or "http" in part or "*" in part]
    (script,) = re.findall(r"<script>(.*?)</script>", response.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}' blob:" in policy


def test_files_with_a_hash_are_cached_and_others_revalidated(server: Server) -> None:
    for name in NAMES:
        kept = server.client.get(_address(name)).headers["cache-control"]
        assert kept == ("public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache")
    assert server.client.get("/health").headers["cache-control"] == "no-store"
    assert server.client.get("/assets/none.js").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("name", NAMES)
def test_a_matching_etag_is_answered_with_304(server: Server, name: str, encoding: str) -> None:
    asked = {"accept-encoding": encoding}
    first = server.client.get(_address(name), headers=asked)
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = server.client.get(_address(name), headers=asked | {"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert again.headers["cache-control"] == first.headers["cache-control"]
    assert server.client.get(_address(name), headers=asked | {"if-none-match": '"other"'}).status_code == 200


def test_gzip_is_used_if_accepted(server: Server) -> None:
    plain = server.client.get("/", headers=PLAIN)
    for accepted in ("gzip", "GZIP", "br, gzip;q=0.5", "*", "deflate;q=0, *"):
        with server.client.stream("GET", "/", headers={"accept-encoding": accepted}) as response:
            body = b"".join(response.iter_raw())
        assert response.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in response.headers["vary"]
        assert response.headers["etag"] != plain.headers["etag"]
        assert len(body) < len(plain.content)
        assert gzip.decompress(body) == plain.content
    for refused in ("", "identity", "br", "gzip;q=0", "gzip; q=0.000", "gzip;q=0, *"):
        response = server.client.get("/", headers={"accept-encoding": refused})
        assert "content-encoding" not in response.headers
        assert "Accept-Encoding" in response.headers["vary"]


@pytest.mark.parametrize(
    "path",
    ["/assets/none.js", "/assets/", "/assets/..%2findex.html", "/assets/%2e%2e/icon.svg", "/page", "/index.html"],
)
def test_unknown_files_are_an_error_in_json(server: Server, path: str) -> None:
    response = server.client.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_other_methods_are_refused(server: Server) -> None:
    assert server.client.post("/").status_code == 405
    assert server.client.get("/completion").status_code == 405, "an API route, not a file"


def test_the_service_worker_of_the_page_of_llama_server_is_removed(server: Server) -> None:
    """A browser that knows llama-server's page at this address would go on showing it."""
    response = server.client.get("/sw.js")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/javascript")
    assert response.headers["cache-control"] == "no-cache"
    assert "unregister" in response.text


def test_the_page_can_be_disabled(server: Server) -> None:
    server.wait_for_line(f"page: {server.url}/")
    with Server("-m", "fake:", "--no-webui") as bare:
        for path in ("/", "/icon.svg", *(_address(name) for name in NAMES), "/live"):
            response = bare.client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert not any("page:" in line for line in bare.output)


async def _ask_unbuilt(folder: Path, path: str) -> httpx.Response:
    app = FastAPI()
    app.add_exception_handler(PaddockError, on_paddock_error)
    app.include_router(page_routes(folder))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        return await client.get(path)


def test_without_built_files_the_error_says_how_to_build_them(tmp_path: Path) -> None:
    response = asyncio.run(_ask_unbuilt(tmp_path / "none", "/"))
    assert response.status_code == 501
    assert "make page" in response.json()["error"]["message"]
    assert asyncio.run(_ask_unbuilt(tmp_path, "/icon.svg")).status_code == 404


def test_the_package_has_the_files() -> None:
    """The wheel contains every file of the package that git does not ignore."""
    root = Path(paddock.__file__).parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/paddock"]}
    ignored = (root / ".gitignore").read_text().split()
    assert not {"page", "page/", "assets", "assets/", "*.js", "*.css", "*.svg", "*.html"} & set(ignored)


def test_the_first_load_is_small() -> None:
    """All that a browser fetches before it shows the page, compressed: heavy parts are loaded when they are needed."""
    index = (BUILT / "index.html").read_bytes()
    linked = re.findall(r'(?:src|href)="\./([^"]+)"', index.decode())
    assert any(name.endswith(".js") for name in linked)
    size = sum(len(gzip.compress(data)) for data in [index, *((BUILT / name).read_bytes() for name in linked)])
    assert size <= 130_000
