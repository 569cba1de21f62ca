"""A minimal chat server that is not llama.cpp-compatible: it streams, and refuses unknown fields."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sesame"


class _StandIn(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, words: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.words = words
        self.bodies: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _StandIn

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/base/v1/models":
            self._answer(200, json.dumps({"data": [{"id": "stand-in"}]}), "application/json")
        else:
            self._answer(404, "{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {KEY}":
            self._answer(401, "{}", "application/json")
        elif self.path != "/base/v1/chat/completions":
            self._answer(404, "{}", "application/json")
        elif "stream_options" in body:
            self._answer(400, '{"error": {"message": "what is stream_options?"}}', "application/json")
        else:
            self.server.bodies.append(body)
            words = self.server.words[: body.get("max_tokens")]
            events = [{"choices": [{"delta": {"content": word}}]} for word in words]
            lines = [f"data: {json.dumps(event)}\n\n" for event in [*events, _END]]
            self._answer(200, "".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

    def _answer(self, status: int, text: str, kind: str) -> None:
        """In chunks, as many proxies do."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data = text.encode()
        for piece in (data[:7], data[7:]):
            if piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


_END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


@contextmanager
def stand_in(*words: str) -> Iterator[_StandIn]:
    """A server that answers every request with these words. Its routes are below `/base` and need a key."""
    server = _StandIn(list(words))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url_of(server: _StandIn) -> str:
    return f"http://127.0.0.1:{server.server_port}/base/v1"
