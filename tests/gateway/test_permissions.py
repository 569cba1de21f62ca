"""The permission of every route: none, a key, or an admin key. A route without one is an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from paddock.config import ServerSettings, Settings
from paddock.fleet import Catalogue, Fleet
from paddock.gateway.app import create_app
from paddock.gateway.auth.permissions import Need, needs_of_endpoints, needs_of_routes
from paddock.gateway.dialects import declared_permissions
from tests.server import Server, wait_for

NEEDS = needs_of_routes(ServerSettings(), declared_permissions())
USER, ADMIN = {"authorization": "Bearer user"}, {"authorization": "Bearer boss"}
# Declared, but served only with the settings that enable it.
METRICS = "GET /metrics"
# Refused for every caller: features of llama-server that this server does not offer.
DISABLED = ("GET /tools", "POST /tools", "GET /cors-proxy", "POST /cors-proxy")


def _app() -> FastAPI:
    async def create() -> FastAPI:
        return create_app(Settings(), Fleet(Catalogue([])), Settings)

    return asyncio.run(create())


def _routes(app: FastAPI) -> set[str]:
    """All routes of the application, as `METHOD /path`."""
    contexts = iter_route_contexts(app.routes)
    return {f"{method} {route.path_format}" for route in contexts for method in route.methods or {"*"}}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return _app()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("keys") / "config.json"
    keys = {"user": {"key": "user"}, "boss": {"key": "boss", "admin": True}}
    file.write_text(json.dumps({"server": {"keys": keys}}))
    with Server("-m", "fake:", "--props", "--config", str(file)) as server:
        yield server


def test_every_route_is_declared_and_no_other(app: FastAPI) -> None:
    routes = _routes(app)
    heads = {route for route in routes if route.startswith("HEAD ")}
    is_open = {route for route, need in NEEDS.items() if need == "open"}
    assert {route.replace("HEAD", "GET") for route in heads} <= is_open | {f"GET {path}" for path in _PROBED}
    assert routes - heads - {METRICS} == NEEDS.keys() - {METRICS}


def test_a_route_without_a_permission_is_an_error(app: FastAPI) -> None:
    new = _app()
    new.get("/admin/new")(lambda: None)
    with pytest.raises(LookupError, match="GET /admin/new"):
        needs_of_endpoints(new.routes, NEEDS)
    with pytest.raises(LookupError, match="do not apply"):
        needs_of_endpoints([Route("/slots", PlainTextResponse("slots"), methods=["GET"])], NEEDS)
    with pytest.raises(LookupError, match=r"POST /props"):
        needs_of_endpoints(app.routes, {name: need for name, need in NEEDS.items() if name != "POST /props"})


def test_a_handler_has_one_permission(app: FastAPI) -> None:
    with pytest.raises(LookupError, match="same handler"):
        needs_of_endpoints(app.routes, NEEDS | {"GET /v1/health": "key"})


def _status(server: Server, route: str, headers: dict[str, str]) -> int:
    method, path = route.split(" ")
    path = path.replace("{id}", "fake").replace("{id_slot}", "0")
    with server.client.stream(method, path, headers=headers) as response:  # some have no end
        return response.status_code


@pytest.mark.parametrize("route", sorted(NEEDS.keys() - {METRICS}))
def test_the_declared_permission_is_enforced(server: Server, route: str) -> None:
    refused: dict[Need, tuple[bool, bool, bool]] = {
        "open": (False, False, False),
        "key": (True, False, False),
        "admin": (True, True, False),
    }
    seen = [_status(server, route, headers) for headers in ({}, USER, ADMIN)]
    expected = [True] * 3 if route in DISABLED else list(refused[NEEDS[route]])
    assert [status in (401, 403) for status in seen] == expected, (route, seen)
    assert seen[0] != 403, "a request without a key gets a 401"
    assert seen[1] != 401, "a valid key gets no 401"


# Ollama's clients ask for them with HEAD too, with their key.
_PROBED = ("/api/tags", "/api/version")
# Other methods of this path are routes of a response with this id.
_SHADOWED = {"/v1/responses/input_tokens": "/v1/responses/{response_id}"}


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE"])
def test_other_methods_are_refused_without_a_key(server: Server, method: str) -> None:
    for path in sorted({route.split(" ")[1] for route in NEEDS.keys() - {METRICS}}):
        status = _status(server, f"{method} {path}", {})
        documents = ("/docs", "/redoc", "/openapi.json", "/", "/manifest.webmanifest")
        is_file = path in documents or path.endswith((".html", ".svg", ".png", ".js"))
        expected = 200 if is_file else 404 if "{name}" in path else 405
        declared = f"{method} {path}" in NEEDS or f"{method} {_SHADOWED.get(path)}" in NEEDS
        declared |= method == "HEAD" and path in _PROBED
        assert status == (401 if declared else expected if method == "HEAD" else 405), (method, path)


def test_openapi_declares_the_same_permissions(server: Server) -> None:
    document: dict[str, Any] = server.client.get("/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            need = NEEDS[f"{method.upper()} {path}"]
            asked = [scheme for scheme in operation["security"] if scheme]
            assert {name for scheme in asked for name in scheme} == (set() if need == "open" else set(schemes))
            assert all(roles == (["admin"] if need == "admin" else []) for scheme in asked for roles in scheme.values())


def test_metrics_are_open_by_default() -> None:
    assert needs_of_routes(ServerSettings(), declared_permissions())[METRICS] == "open"
    assert needs_of_routes(ServerSettings(metrics_key=True), declared_permissions())[METRICS] == "metrics"


def test_metrics_key_requires_an_admin_or_metrics_key(tmp_path: Path) -> None:
    keys = {"user": {"key": "user"}, "watch": {"key": "watch", "metrics": True}, "boss": {"key": "boss", "admin": True}}
    (tmp_path / "c.json").write_text(json.dumps({"server": {"keys": keys, "metrics_key": True}}))
    with Server("-m", "fake:", "--config", str(tmp_path / "c.json")) as server:
        expected = {"user": 403, "watch": 200, "boss": 200, "nobody": 401}
        for key, status in expected.items():
            assert server.client.get("/metrics", headers={"X-API-Key": key}).status_code == status
        assert server.client.get("/admin/usage", headers={"X-API-Key": "watch"}).status_code == 403


def test_without_keys_every_route_is_open(fake_server: Server) -> None:
    for route in ("GET /admin/status", "GET /slots", "GET /admin/usage", "GET /v1/models"):
        assert _status(fake_server, route, {}) == 200


def test_an_admin_reloads_the_models_directory(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"server": {"keys": {"user": {"key": "user"}}, "api_keys": ["boss"]}}')
    with Server("-m", "fake:", "--config", str(tmp_path / "c.json")) as server:
        assert server.client.post("/models?reload=1", headers=USER).status_code == 403
        assert sum("reloaded" in line for line in server.output) == 0
        listed = server.client.post("/models?reload=1", headers=ADMIN)
        assert listed.status_code == 200
        wait_for(lambda: any("reloaded" in line for line in server.output), 20, "the reload")
        assert server.client.post("/models?reload=yes please", headers=ADMIN).status_code == 400


def test_get_requests_change_nothing(tmp_path: Path) -> None:
    """Any web page can make a browser send a GET request."""
    with Server("-m", "fake:") as server:
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        for path in ("/models?reload=1", "/v1/models?reload=1"):
            listed = server.client.get(path, headers=link)
            assert listed.status_code == 200 and listed.json()["data"]
            assert listed.headers["x-paddock-ignored-fields"] == "reload"
        server.client.post("/admin/reload")
        wait_for(lambda: any("reloaded" in line for line in server.output), 20, "the reload of the POST request")
        assert sum(" reloaded" in line for line in server.output) == 1
