"""`--path`: the files of a folder in place of the web page."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.forking import run_command
from tests.server import Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("secret")
    folder = outside / "site"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".well-known").mkdir()
    (folder / "index.html").write_text("<p>my page")
    (folder / "app.js").write_text("let mine;")
    (folder / "health").write_text("not the health check")
    (folder / "sub" / "index.html").write_text("<p>below")
    (folder / ".git" / "config").write_text("secret")
    (folder / ".well-known" / "a.txt").write_text("public")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server("-m", "fake:", "--path", str(folder), "--api-prefix", "/llm", "--api-key", "a-long-key") as server:
        yield server


def test_files_are_served_without_a_key(server: Server) -> None:
    for path, text in (("/", "my page"), ("/index.html", "my page"), ("/app.js", "let mine"), ("/sub/", "below")):
        response = server.client.get(f"/llm{path}")
        assert response.status_code == 200 and text in response.text, path
        assert response.headers["cache-control"] == "no-cache"
    assert "javascript" in server.client.get("/llm/app.js").headers["content-type"]
    assert server.client.get("/llm/.well-known/a.txt").text == "public"
    assert server.client.head("/llm/app.js").headers["content-length"] == "9"


def test_a_browser_does_not_load_an_unchanged_file_again(server: Server) -> None:
    tag = server.client.get("/llm/app.js").headers["etag"]
    assert server.client.get("/llm/app.js", headers={"if-none-match": tag}).status_code == 304


def test_a_folder_redirects_to_its_page(server: Server) -> None:
    response = server.client.get("/llm/sub")
    assert (response.status_code, response.headers["location"]) == (307, f"{server.url}/llm/sub/")


def test_routes_come_before_files(server: Server) -> None:
    assert server.client.get("/llm/health").json()["status"] == "ok"
    assert server.client.get("/llm/v1/models").status_code == 401
    assert "paths" in server.client.get("/llm/openapi.json").json()


@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/%2e%2e/secret.txt", "/sub/../../secret.txt", "/..%2fsecret.txt", "//etc/passwd", "/link.txt"],
)
def test_nothing_outside_of_the_folder_is_served(server: Server, path: str) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as client:
        # Not httpx, which would shorten the path.
        client.sendall(f"GET /llm{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404 ") and b"secret" not in answer.partition(b"\r\n\r\n")[2].replace(
        b"secret.txt", b""
    )


@pytest.mark.parametrize("path", ["/.git/config", "/sub/.hidden", "/nothing.html", "/assets/x.js", "/a%00b"])
def test_hidden_and_unknown_files_are_a_404(server: Server, path: str) -> None:
    response = server.client.get(f"/llm{path}")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_other_methods_are_not_for_files(server: Server) -> None:
    assert server.client.post("/llm/app.js").status_code == 404
    assert server.client.post("/llm/v1/nothing", headers={"x-api-key": "a-long-key"}).status_code == 404


def test_without_the_page_no_files_are_served(folder: Path) -> None:
    with Server("-m", "fake:", "--path", str(folder), "--no-webui") as server:
        assert server.client.get("/app.js").status_code == 404


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    done = run_command("serve", "-m", "fake:", "--port", "0", "--path", str(tmp_path / "none"), cwd=tmp_path)
    assert done.returncode == 1
    assert "--path" in done.stderr and "does not exist" in done.stderr
