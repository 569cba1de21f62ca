"""A stand-in for the Hugging Face hub, on loopback: what of it a download needs, and mishaps on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    files: dict[str, bytes]
    token: str = ""
    """Who does not send it is turned away."""
    gated: bool = False
    in_git: bool = False
    """It tells git's digests of its files, as of small ones."""
    lies: bool = False
    """It promises other checksums than its files have."""
    cut_after: int | None = None
    """The next download breaks off after so many bytes."""
    down: bool = False
    """Downloads that begin in the middle are answered by an error."""
    pause_after: int | None = None
    """Downloads stop after so many bytes, until `resume`."""
    resume: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    ended: list[bool] = field(default_factory=list)
    """Whether each paused download was read to its end."""
    is_headless: bool = False
    """It does not answer HEAD."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """What was downloaded, and from which byte on."""


class Hub:
    """Serves repositories by their names while it is entered."""

    def __init__(self, **repositories: Repository) -> None:
        self.repositories = {name.replace("__", "/"): repository for name, repository in repositories.items()}

    def __enter__(self) -> Hub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/api/models":
                wanted = parse_qs(urlsplit(self.path).query).get("search", [""])[0]
                self._send(200, json.dumps(_found(hub, wanted)).encode())
                return
            if path.startswith("/api/models/"):
                name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
                repository = self._open(name)
                if repository is not None and revision not in ("", "main", REVISION):
                    self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                elif repository is not None:
                    self._send(200, json.dumps(_listing(repository)).encode())
                return
            name, _, rest = path.removeprefix("/").partition("/resolve/")
            repository = self._open(name)
            if repository is not None:
                self._download(repository, rest.partition("/")[2])

        def do_HEAD(self) -> None:
            """Describes a file, as the hub does: with the SHA-256 that it promises."""
            name, _, rest = urlsplit(self.path).path.removeprefix("/").partition("/resolve/")
            repository = hub.repositories.get(name)
            data = repository.files.get(rest.partition("/")[2]) if repository is not None else None
            if repository is None or data is None or repository.is_headless:
                self.send_response(404)
                self.send_header("Content-Length", "0")
            else:
                self.send_response(200)
                self.send_header("ETag", f'"{hashlib.sha256(data + b"?" * repository.lies).hexdigest()}"')
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _open(self, name: str) -> Repository | None:
            repository = hub.repositories.get(name)
            if repository is None:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif repository.gated:
                self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
            elif repository.token and self.headers["authorization"] != f"Bearer {repository.token}":
                self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            else:
                return repository
            return None

        def _download(self, repository: Repository, file: str) -> None:
            data = repository.files.get(file)
            if data is None:
                self._send(404, b"{}")
                return
            wanted = self.headers["range"]
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            repository.asked.append((file, wanted or ""))
            if start and repository.down:
                self._send(503, b"{}")
                return
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(data) - start))
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if repository.pause_after is not None:
                self._pause(repository, data[start:], repository.pause_after)
            elif repository.cut_after is not None:
                self.wfile.write(data[start : start + repository.cut_after])
                repository.cut_after = None
                self.close_connection = True
            else:
                self.wfile.write(data[start:])

        def _pause(self, repository: Repository, data: bytes, after: int) -> None:
            self.wfile.write(data[:after])
            repository.paused.set()
            repository.resume.wait()
            try:
                self.wfile.write(data[after:])
            except OSError:
                self.close_connection = True
                repository.ended.append(False)
            else:
                repository.ended.append(True)

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _found(hub: Hub, text: str) -> list[dict[str, object]]:
    found = [name for name in hub.repositories if text in name]
    return [
        {"id": name, "downloads": 3, "likes": 2, "lastModified": "2026-01-02T03:04:05.000Z", "tags": ["gguf"]}
        for name in found
    ]


def _listing(repository: Repository) -> dict[str, object]:
    def entry(name: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data + b"?" * repository.lies).hexdigest()
        if repository.in_git:
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data + b"?" * repository.lies).hexdigest()
            return {"rfilename": name, "size": len(data), "blobId": blob}
        lfs = {"sha256": digest, "size": len(data), "pointerSize": 130}
        return {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest(), "lfs": lfs}

    siblings = [entry(name, data) for name, data in repository.files.items()]
    return {"id": "x/y", "sha": REVISION, "siblings": siblings}
