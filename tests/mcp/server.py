"""A little MCP server over real HTTP, whose tools do what a test needs. The test sees what it has received."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


class Mcp:
    """`events`: responses are event streams. `sessions`: requests need a session. `pages`: one tool on each page."""

    def __init__(self, *, events: bool = False, sessions: bool = True, pages: bool = False) -> None:
        self.events, self.sessions, self.pages = events, sessions, pages
        self.tools: dict[str, Answer] = {
            "echo": lambda arguments: text(arguments["text"]),
            "fail": lambda _: text("the disk is full", isError=True),
        }
        self.version = "2025-06-18"
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        """Method, headers and message of each request."""
        self.known: set[str] = set()
        """The sessions."""
        self.released = threading.Event()
        """`wait` answers when it is set."""
        self.held = threading.Event()
        """Set when `wait` is called."""
        self.status: int | None = None
        """Answer everything with this status."""
        self.raw: bytes | None = None
        """Answer calls of tools with this body."""

    def __enter__(self) -> Mcp:
        mcp = self

        class Handler(_Handler):
            server_of = mcp

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/mcp"

    def methods(self) -> list[str]:
        return [message.get("method", "reply") if method == "POST" else method for method, _, message in self.requests]

    def add(self, name: str, answer: Answer | str) -> None:
        self.tools[name] = answer if callable(answer) else (lambda _: text(answer))

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """None: there is no such tool."""
        match method:
            case "initialize":
                return {"protocolVersion": self.version, "capabilities": {"tools": {}}, "serverInfo": {"name": "t"}}
            case "tools/list":
                names = list(self.tools)
                at = int(params.get("cursor", 0))
                shown = names[at : at + 1] if self.pages else names
                more = {"nextCursor": str(at + 1)} if self.pages and at + 1 < len(names) else {}
                listed = [{"name": name, "description": f"Does {name}.", "inputSchema": _SCHEMA} for name in shown]
                return {"tools": listed, **more}
            case _:
                tool = self.tools.get(params["name"])
                return None if tool is None else tool(params["arguments"])

    def wait(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        self.held.set()
        self.released.wait(300)
        return text("waited")


class _Handler(BaseHTTPRequestHandler):
    server_of: Mcp
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_DELETE(self) -> None:
        self._note({})
        self.server_of.known.discard(self.headers.get("mcp-session-id", ""))
        self._send(204, b"", "text/plain")

    def do_POST(self) -> None:
        mcp = self.server_of
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._note(message)
        method, session = message.get("method"), self.headers.get("mcp-session-id", "")
        if mcp.status is not None:
            self._send(mcp.status, b"", "text/plain", {"Location": "http://127.0.0.1:9/"})
        elif mcp.sessions and method != "initialize" and session not in mcp.known:
            self._send(404 if session else 400, b"", "text/plain")
        elif "id" not in message or method is None:
            self._send(202, b"", "text/plain")
        else:
            self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        mcp, method = self.server_of, message["method"]
        headers = {}
        if method == "initialize" and mcp.sessions:
            headers["Mcp-Session-Id"] = f"session-{len(mcp.requests)}"
            mcp.known.add(headers["Mcp-Session-Id"])
        if mcp.raw is not None and method == "tools/call":
            self._send(200, mcp.raw, "text/event-stream" if mcp.events else "application/json")
            return
        result = mcp.result(method, message.get("params", {}))
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        response |= {"error": {"code": -32602, "message": "Unknown tool"}} if result is None else {"result": result}
        body = json.dumps(response).encode()
        if mcp.events:
            notice = b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n\n'
            ping = b'data: {"jsonrpc": "2.0", "id": "p1", "method": "ping"}\n\n'
            body = b": hello\n\n" + notice + ping + b"event: message\ndata: " + body + b"\n\n"
        self._send(200, body, "text/event-stream" if mcp.events else "application/json; charset=utf-8", headers)

    def _note(self, message: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_of.requests.append((self.command, headers, message))

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        dies = body.endswith(b"DIES")
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.removesuffix(b"DIES"))
        self.close_connection = dies
