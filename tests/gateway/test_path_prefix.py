"""`--api-prefix`: every route is below a path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paddock.config import ServerSettings
from tests.server import Server, chat_body

KEY = {"Authorization": "Bearer a-long-enough-key"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:", "--api-prefix", "/llm/", "--api-key", "a-long-enough-key") as server:
        yield server


def test_routes_are_below_the_prefix_only(server: Server) -> None:
    answer = server.client.post("/llm/v1/chat/completions", json=chat_body("say: hi"), headers=KEY)
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    for path in ("/health", "/metrics", "/openapi.json", "/icon.svg", "/docs"):
        assert server.client.get(f"/llm{path}").status_code == 200, path
    for path in ("/health", "/", "/v1/models", "/llmx/health", "/LLM/health", "/metrics"):
        response = server.client.get(path, headers=KEY)
        assert response.status_code == 404, path
        assert "all routes are below /llm" in response.json()["error"]["message"]


def test_keys_are_checked_below_the_prefix(server: Server) -> None:
    assert server.client.get("/llm/v1/models").status_code == 401
    assert server.client.get("/llm/v1/models", headers=KEY).status_code == 200
    assert server.client.get("/llm/admin/status").status_code == 401


def test_the_page_uses_paths_below_the_prefix(server: Server) -> None:
    page = server.client.get("/llm/")
    assert page.headers["content-type"].startswith("text/html")
    assert 'src="./assets/' in page.text
    reference = server.client.get("/llm/docs")
    assert 'href="docs/reference.css"' in reference.text


def test_redirects_keep_the_prefix(server: Server) -> None:
    response = server.client.get("/llm")
    assert (response.status_code, response.headers["location"]) == (307, "/llm/")
    response = server.client.get("/llm/health/?a=b")
    assert (response.status_code, response.headers["location"]) == (307, f"{server.url}/llm/health?a=b")
    assert server.client.post("/llm").status_code == 404


def test_the_description_names_the_prefix(server: Server) -> None:
    document = server.client.get("/llm/openapi.json").json()
    assert document["servers"] == [{"url": "/llm"}]
    assert "/v1/chat/completions" in document["paths"]


def test_metrics_have_the_routes_without_the_prefix(server: Server) -> None:
    assert server.client.get("/llm/health").status_code == 200
    metrics = server.client.get("/llm/metrics").text
    assert 'route="/health"' in metrics and "/llm" not in metrics


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("/", ""), ("/a", "/a"), ("/a/b.c/", "/a/b.c")])
def test_valid_prefixes(given: str, prefix: str) -> None:
    assert ServerSettings(api_prefix=given).api_prefix == prefix


@pytest.mark.parametrize("given", ["a", "//", "/a b", "/../a", "/a?b", "/%2e", "http://a"])
def test_invalid_prefixes(given: str) -> None:
    with pytest.raises(ValueError, match="expected a path, such as /llm"):
        ServerSettings(api_prefix=given)
