"""HTTP by hand, for what no client library would send."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json()["error"]["code"]
        return code


class Wire:
    """One connection to a server."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None, receive_buffer: int = 0) -> None:
        where = urlsplit(url)
        assert where.hostname is not None and where.port is not None
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(100)
        self.socket.connect((where.hostname, where.port))
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._unread = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Wire:
        self.socket.sendall(data)
        return self

    def answer(self) -> Answer:
        """The next response, which must have a length."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers["content-length"])
        while len(self._unread) < length:
            self._more()
        body, self._unread = self._unread[:length], self._unread[length:]
        return Answer(int(status.split()[1]), headers, body)

    def closed(self) -> bool:
        """Whether the server has closed it; waits for that."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"closed after {self._unread!r}"
        self._unread += data


def post(path: str, body: bytes | dict[str, Any], *headers: str, length: int | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
