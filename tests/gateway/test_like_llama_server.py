"""The same command line gives the same addresses, paths and headers as with llama-server, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, client_of

Clients = dict[str, dict[str, httpx.Client]]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, tiny_models: dict[str, Path]) -> Iterator[Clients]:
    """For each server a client of its port, and one of its unix socket."""
    binary, model, folder = llama_server_binary(), tiny_models["llama"], tmp_path_factory.mktemp("both")
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text("<p>mine")
    flags = ("--api-prefix", "/llm", "--path", str(folder / "site"), "--webui", "--cors-origins", "localhost")
    theirs, ours = (f"127.0.0.1,{folder / name}" for name in ("theirs.sock", "ours.sock"))
    with ExitStack() as stack:
        other = stack.enter_context(LlamaServer(binary, model, "--host", theirs, *flags, prefix="/llm"))
        own = stack.enter_context(Server("-m", str(model), "--host", ours, "--metrics", *flags))
        urls = {"theirs": other.url, "ours": own.url}
        yield {
            name: {
                "tcp": stack.enter_context(client_of(url)),
                "unix": stack.enter_context(client_of(f"unix://{folder / name}.sock")),
            }
            for name, url in urls.items()
        }


def _both(clients: Clients, method: str, path: str, way: str = "tcp", **headers: str) -> list[httpx.Response]:
    return [clients[name][way].request(method, path, headers=headers) for name in ("theirs", "ours")]


@pytest.mark.parametrize("way", ["tcp", "unix"])
@pytest.mark.parametrize(
    "path",
    ["/llm/health", "/llm/v1/models", "/llm/metrics", "/llm/", "/llm/none.html", "/health", "/v1/models", "/", "/llmx"],
)
def test_paths(clients: Clients, path: str, way: str) -> None:
    theirs, ours = _both(clients, "GET", path, way)
    assert theirs.status_code == ours.status_code
    if ours.status_code == 404:
        assert theirs.json()["error"]["type"] == ours.json()["error"]["type"]
        assert ours.json()["error"]["message"].startswith(theirs.json()["error"]["message"])


def test_the_page_is_the_file_of_the_folder(clients: Clients) -> None:
    theirs, ours = _both(clients, "GET", "/llm/")
    assert theirs.text == ours.text == "<p>mine"


def test_the_header_of_the_metrics(clients: Clients) -> None:
    assert all(answer.headers["process-start-time-unix"].isdigit() for answer in _both(clients, "GET", "/llm/metrics"))


def test_properties_cannot_be_changed_by_default(clients: Clients) -> None:
    theirs, ours = _both(clients, "POST", "/llm/props")
    assert theirs.status_code == ours.status_code == 501
    assert ours.json()["error"]["message"].startswith(theirs.json()["error"]["message"])


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1"])
def test_pages_of_localhost(clients: Clients, origin: str) -> None:
    for answer in _both(clients, "GET", "/llm/v1/models", origin=origin):
        assert answer.headers["access-control-allow-origin"] == origin
    asked = {"origin": origin, "access-control-request-method": "POST"}
    for answer in _both(clients, "OPTIONS", "/llm/v1/chat/completions", **asked):
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert {"GET", "POST", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))


def test_other_pages_get_no_permission(clients: Clients) -> None:
    for answer in _both(clients, "GET", "/llm/v1/models", origin="http://evil.example"):
        assert "access-control-allow-origin" not in answer.headers
