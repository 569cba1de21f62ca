"""Files that requests name by URL: which are fetched, from where, and how much of them."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import HostRules
from paddock.errors import InvalidRequest, RateLimitExceeded
from paddock.gateway.generation.media_sources import LARGEST_FILE, MediaRefused, MediaSources, path_parts, read_below
from paddock.gateway.http.body_budget import BodyBudget, HeldBody
from paddock.types import ChatPrompt, MediaFile
from tests import tiny_models, tiny_projectors
from tests.certificates import make_certificate
from tests.server import Server
from tests.tiny_projectors import picture

PICTURE = picture(1)
CHAT = "/v1/chat/completions"


class Pictures(BaseHTTPRequestHandler):
    """A server of pictures, and of things that go wrong."""

    seen: list[tuple[str, str, str]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Host"], self.headers.get("Authorization", "")))
        kind, _, rest = self.path.strip("/").partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest.replace("|", "//"))
            self.end_headers()
        elif kind == "none":
            self.send_error(404)
        elif kind == "slow":
            self.send_response(200)
            self.end_headers()
            self.server.slow.wait(20)  # type: ignore[attr-defined]
        elif kind == "endless":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(2 * LARGEST_FILE >> 20):
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                pass
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PICTURE)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Host(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.slow = threading.Event()
        super().__init__(("127.0.0.1", 0), type("Handler", (Pictures,), {"seen": self.seen}))
        self.port = self.server_port
        self.url = f"http://127.0.0.1:{self.port}"


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        thread = threading.Thread(target=host.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield host
        host.slow.set()
        host.shutdown()
        thread.join(10)


def fetch(sources: MediaSources, *urls: str, held: HeldBody | None = None, close: bool = True) -> tuple[MediaFile, ...]:
    files = tuple(MediaFile("image", "", f"field{index}", url=url) for index, url in enumerate(urls))

    async def run() -> tuple[MediaFile, ...]:
        try:
            found = await sources.fetch(ChatPrompt([], media=files), held)
        finally:
            await sources.close()
        assert isinstance(found, ChatPrompt)
        return found.media

    return asyncio.run(run())


def sources(*hosts: str, folder: Path | None = None, limit: int = 32 << 20) -> MediaSources:
    return MediaSources(HostRules.parse(hosts), folder, limit=limit)


def refused(made: MediaSources, url: str) -> str:
    with pytest.raises(InvalidRequest) as error:
        fetch(made, url)
    assert error.value.param == "field0"
    return error.value.message


# ── downloads ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_that_is_named_itself(host: Host) -> None:
    found = fetch(sources(f"127.0.0.1:{host.port}"), f"{host.url}/a.png", f"{host.url}/b.png")
    assert [(file.content, file.url) for file in found] == [(PICTURE, "")] * 2


def test_hosts_that_are_not_allowed(host: Host) -> None:
    assert "--media-url-hosts HOST" in refused(sources(), f"{host.url}/a.png")
    says = "is not one of --media-url-hosts"
    assert says in refused(sources("example.org"), f"{host.url}/a.png")
    assert says in refused(sources("127.0.0.1"), f"{host.url}/a.png"), "another port"
    assert says in refused(sources(f"127.0.0.2:{host.port}"), f"{host.url}/a.png")
    assert host.seen == []


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::ffff:127.0.0.1]"])
def test_addresses_that_are_not_public(host: Host, name: str) -> None:
    """Although all hosts are allowed, and whatever the address looks like."""
    says = refused(sources("*:*"), f"http://{name}:{host.port}/a.png")
    assert "not public" in says or "is not known" in says or "not valid" in says
    if name == "localhost":
        assert "not public" in refused(sources("localhost:*"), f"http://{name}:{host.port}/a.png")
    assert host.seen == []


class Resolved(MediaSources):
    """With a name that has an address of this machine, as if it were public."""

    async def _addresses(self, scheme: str, host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "pictures.example" else await super()._addresses(scheme, host, port)


def test_the_connection_goes_to_the_checked_address(host: Host) -> None:
    """The name is not resolved a second time: it does not exist."""
    made = Resolved(HostRules.parse(["pictures.example:*"]), None, limit=1 << 20)
    (file,) = fetch(made, f"http://pictures.example:{host.port}/a.png")
    assert file.content == PICTURE
    assert host.seen == [("/a.png", f"pictures.example:{host.port}", "")]


def test_redirects_are_checked(host: Host) -> None:
    allowed = sources(f"127.0.0.1:{host.port}")
    (file,) = fetch(allowed, f"{host.url}/to//a.png")
    assert file.content == PICTURE
    for target, says in (
        (f"http:|localhost:{host.port}/secret", "is not one of"),
        ("http:|169.254.169.254/secret", "is not one of"),
        ("file:|etc/passwd", "a redirect to a file: URL"),
        ("gopher:|a/b", "a redirect to a gopher: URL"),
        (f"http:|u:p@127.0.0.1:{host.port}/secret", "user name"),
    ):
        made = sources(f"127.0.0.1:{host.port}")
        assert says in refused(made, f"{host.url}/to/{target}")
    made = Resolved(HostRules.parse(["pictures.example:*", "localhost:*"]), None, limit=1 << 20)
    says = refused(made, f"http://pictures.example:{host.port}/to/http:|localhost:{host.port}/secret")
    assert "not public" in says
    assert not [path for path, _, _ in host.seen if "secret" in path and not path.startswith("/to")]
    circle = "/to/" * 6 + "a"
    assert "redirected more than 3 times" in refused(sources(f"127.0.0.1:{host.port}"), f"{host.url}{circle}")


def test_failures_are_told_without_details(host: Host) -> None:
    def made() -> MediaSources:
        return sources(f"127.0.0.1:{host.port}", "127.0.0.1:1", "nothing.invalid")

    assert "HTTP 404" in refused(made(), f"{host.url}/none")
    assert refused(made(), "http://127.0.0.1:1/a") == "field0: the download failed: ConnectError"
    assert "is not known" in refused(made(), "http://nothing.invalid/a")
    assert "user name" in refused(made(), f"http://a:b@127.0.0.1:{host.port}/a")
    assert "has no host" in refused(made(), "http:///a")


def test_certificates_are_verified(host: Host, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host.socket = context.wrap_socket(host.socket, server_side=True)
    says = refused(sources(f"127.0.0.1:{host.port}"), f"https://127.0.0.1:{host.port}/a.png")
    assert says == "field0: the download failed: ConnectError"
    assert host.seen == []


def test_times_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddock.gateway.generation.media_sources._SECONDS", 0.3)
    assert "longer than 0.3 s" in refused(sources(f"127.0.0.1:{host.port}"), f"{host.url}/slow")


def test_sizes_are_bounded(host: Host) -> None:
    assert "larger than 32 MiB" in refused(sources("127.0.0.1:*", limit=1 << 30), f"{host.url}/endless")
    assert "server.max_body_bytes" in refused(sources("127.0.0.1:*", limit=100), f"{host.url}/a.png")
    several = sources("127.0.0.1:*", limit=2 * len(PICTURE))
    assert len(fetch(several, *[f"{host.url}/a.png"] * 2)) == 2
    with pytest.raises(InvalidRequest, match="max_body_bytes"):
        fetch(sources("127.0.0.1:*", limit=2 * len(PICTURE)), *[f"{host.url}/a.png"] * 3)
    budget = BodyBudget(2 * len(PICTURE))
    held = budget.open("key")
    fetch(sources("127.0.0.1:*"), f"{host.url}/a.png", held=held)
    assert budget.held == len(PICTURE)
    with pytest.raises(RateLimitExceeded):
        fetch(sources("127.0.0.1:*"), f"{host.url}/a.png", held=held)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_bytes(b"secret")
    folder = outside / "media"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.png").write_bytes(PICTURE)
    (folder / "inner" / "b c.png").write_bytes(PICTURE)
    (folder / "link.png").symlink_to("inner/b c.png")
    (folder / "inner" / "up").symlink_to("..")
    (folder / "out").symlink_to(outside / "secret")
    (folder / "outdir").symlink_to(outside)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    with (folder / "large").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    return folder


@pytest.mark.parametrize(
    "path", ["a.png", "/a.png", "//a.png", "./a.png", "inner/b c.png", "inner//b c.png", "link.png", "inner/up/a.png"]
)
def test_files_of_the_folder(folder: Path, path: str) -> None:
    assert read_below(folder, path) == PICTURE


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", ".", "..", "../secret", "inner/../a.png", "inner/../../secret", "/../secret", "a.png\0", "a\nb"),
        *("out", "outdir/secret", "loop", "pipe", "inner", "none.png", "a.png/x", "large", "x" * 2000, "/etc/passwd"),
        *("..%2fsecret", "%2e%2e/secret", "..\\secret", "a" * 300),
    ],
)
def test_paths_that_are_refused(folder: Path, path: str) -> None:
    with pytest.raises(MediaRefused):
        read_below(folder, path)


_PART = st.sampled_from(["..", ".", "", "a", "out", "outdir", "secret", "inner", "up", "loop"]) | st.text(max_size=3)


@given(st.lists(_PART, max_size=8), st.sampled_from(["", "/", "//"]))
def test_no_path_leads_out(parts: list[str], start: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "secret").write_bytes(b"secret")
        folder = top / "media"
        (folder / "inner").mkdir(parents=True)
        (folder / "a").write_bytes(b"open")
        (folder / "inner" / "a").write_bytes(b"open")
        (folder / "inner" / "up").symlink_to("..")
        (folder / "out").symlink_to("../secret")
        (folder / "outdir").symlink_to(top)
        (folder / "loop").symlink_to("loop")
        try:
            assert read_below(folder, start + "/".join(parts)) == b"open"
        except MediaRefused as error:
            assert str(error)


@given(st.text(max_size=30) | st.lists(_PART, max_size=6).map("/".join))
def test_names_of_a_path(path: str) -> None:
    parts = path_parts(path)
    assert parts is None or (parts and all(part not in ("", ".", "..") and "/" not in part for part in parts))


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _body(url: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it"}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0, **more}


def test_urls_in_every_dialect(host: Host, folder: Path, tmp_path: Path) -> None:
    tiny_models.llama(tmp_path / "eye.gguf")
    tiny_projectors.llava(tmp_path / "mmproj.gguf")
    flags = ("--media-url-hosts", f"127.0.0.1:{host.port}", "--media-path", str(folder))
    with Server("-m", str(tmp_path / "eye.gguf"), "-c", "1024", *flags) as server:
        data = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"

        def text(url: str) -> str:
            response = server.client.post(CHAT, json=_body(url))
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["message"]["content"])

        expected = text(data)
        assert text(f"{host.url}/a.png") == text("file://a.png") == text("file:///inner/b c.png") == expected
        url = f"{host.url}/a.png"
        block = {"type": "image", "source": {"type": "url", "url": url}}
        sent = {"max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": [block, _TEXT]}]}
        message = server.client.post("/v1/messages", json=sent).json()
        assert message["content"][0]["text"] == expected
        counted = server.client.post("/v1/messages/count_tokens", json=sent).json()["input_tokens"]
        assert counted == message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
        part = {"type": "input_image", "image_url": url}
        content = [part, {"type": "input_text", "text": _TEXT["text"]}]
        sent = {"max_output_tokens": 8, "temperature": 0, "input": [{"role": "user", "content": content}]}
        response = server.client.post("/v1/responses", json=sent).json()
        assert response["output"][0]["content"][0]["text"] == expected
        streamed = server.client.post(CHAT, json=_body(url, stream=True)).text
        assert "[DONE]" in streamed
        for url, says in (
            (f"{host.url}/none", "HTTP 404"),
            ("http://example.org/a.png", "not one of --media-url-hosts"),
            ("file://../secret", "not allowed"),
            ("file://out", "leads out of --media-path"),
            ("file://large", "larger than 32 MiB"),
        ):
            refusal = server.client.post(CHAT, json=_body(url))
            error = refusal.json()["error"]
            assert (refusal.status_code, error["param"]) == (400, "messages[0].content[0].image_url.url")
            assert says in error["message"]
        page = f"{host.url}/to/file:|etc/passwd"
        assert server.client.post(CHAT, json=_body(page)).status_code == 400


_TEXT = {"type": "text", "text": "what is it"}


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"media_path .* does not exist"),
        Server("-m", "fake:", "--media-path", str(tmp_path / "none")),
    ):
        pass
