"""Tools of MCP servers: a real gateway, and real little servers over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.mcp.server import Mcp, text
from tests.server import Server, wait_for
from tests.sockets import Wire, post
from tests.tiers import full

ADMIN = {"authorization": "Bearer boss"}


class Config:
    """A configuration file with MCP servers, which may be changed and reloaded."""

    def __init__(self, folder: Path, **servers: Any) -> None:
        self.file = folder / "config.json"
        self.servers: dict[str, Any] = {
            name: {"url": found.url} if isinstance(found, Mcp) else found for name, found in servers.items()
        }
        self.keys: dict[str, Any] = {}
        self.write()

    def write(self) -> None:
        keys = {"keys": self.keys} if self.keys else {}
        self.file.write_text(json.dumps({"server": {"mcp_servers": self.servers, **keys}}))

    def serve(self, **env: str) -> Server:
        self.write()
        return Server("-m", "fake:", "--config", str(self.file), env=env)


def listed(server: Server, **headers: str) -> dict[str, Any]:
    response = server.client.get("/v1/mcp/tools", headers=headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def call(server: Server, tool: str, name: str = "notes", **arguments: Any) -> httpx.Response:
    return server.client.post("/v1/mcp/call", json={"server": name, "tool": tool, "arguments": arguments})


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


@pytest.fixture
def mcp() -> Iterator[Mcp]:
    with Mcp() as mcp:
        yield mcp


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("sessions", [False, True])
def test_tools_are_listed_and_called(tmp_path: Path, events: bool, sessions: bool) -> None:
    with Mcp(events=events, sessions=sessions, pages=True) as mcp, Config(tmp_path, notes=mcp).serve() as server:
        found = listed(server)
        assert found["servers"] == [{"name": "notes", "tools": 2, "error": None}]
        first = found["data"][0]
        assert (first["type"], first["server"], first["tool"]) == ("function", "notes", "echo")
        assert (first["function"]["name"], first["function"]["description"]) == ("notes__echo", "Does echo.")
        assert first["function"]["parameters"]["required"] == ["text"]
        assert call(server, "echo", text="héllo").json() == {"content": "héllo", "is_error": False}
        assert call(server, "fail").json() == {"content": "the disk is full", "is_error": True}
        assert call(server, "none").json() == {"content": "Unknown tool", "is_error": True}
        methods = [method for method in mcp.methods() if method != "reply"]
        assert methods[:2] == ["initialize", "notifications/initialized"]
        assert methods[2:] == ["tools/list"] * 2 + ["tools/call"] * 3, "one session, and two pages"
        wait_for(lambda: mcp.methods().count("reply") == (6 if events else 0), 30, "a reply to the ping of each stream")
        for _, headers, message in mcp.requests:
            assert headers["accept"] == "application/json, text/event-stream"
            known = message.get("method") != "initialize"
            assert headers.get("mcp-protocol-version") == ("2025-06-18" if known else None)
            assert ("mcp-session-id" in headers) == (known and sessions)
    assert ("DELETE" in mcp.methods()) == sessions, "the session ends with the server"
    assert not mcp.known


@full
def test_nothing_is_sent_before_tools_are_asked_for(tmp_path: Path, mcp: Mcp) -> None:
    with Config(tmp_path, notes=mcp).serve() as server:
        for path in ("/health", "/metrics", "/v1/models", "/", "/admin/status", "/openapi.json"):
            assert server.client.get(path).status_code == 200
        assert mcp.requests == []
        states = [model["status"]["value"] for model in server.client.get("/models").json()["data"]]
        listed(server)
        assert [model["status"]["value"] for model in server.client.get("/models").json()["data"]] == states


def test_only_the_tools_of_the_settings_are_offered_and_called(tmp_path: Path, mcp: Mcp) -> None:
    mcp.add("read_file", "words")
    with Config(tmp_path, notes={"url": mcp.url, "tools": ["echo", "read_*"]}).serve() as server:
        assert [tool["tool"] for tool in listed(server)["data"]] == ["echo", "read_file"]
        assert call(server, "read_file").json()["content"] == "words"
        status, code, message = error_of(call(server, "fail"))
        assert (status, code) == (403, "permission_denied")
        assert "server.mcp_servers.notes.tools" in message
    assert "fail" not in [message.get("params", {}).get("name") for _, _, message in mcp.requests]


def test_a_forgotten_session_is_begun_again(tmp_path: Path, mcp: Mcp) -> None:
    called: list[str] = []

    def note(arguments: dict[str, Any]) -> dict[str, Any]:
        called.append(arguments["text"])
        return text("noted")

    mcp.add("note", note)
    with Config(tmp_path, notes=mcp).serve() as server:
        assert call(server, "note", text="a").status_code == 200
        mcp.known.clear()
        assert call(server, "note", text="b").json()["content"] == "noted"
        assert called == ["a", "b"]
        assert mcp.methods().count("initialize") == 2


def test_simultaneous_calls_share_one_session(tmp_path: Path, mcp: Mcp) -> None:
    with Config(tmp_path, notes=mcp).serve() as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: call(server, "echo", text=str(number)).json()["content"], range(8)))
        assert answers == [str(number) for number in range(8)]
        assert mcp.methods().count("initialize") == 1


@pytest.mark.parametrize("events", [False, True])
def test_bad_answers_are_errors_of_that_server(tmp_path: Path, events: bool) -> None:
    good = b'{"jsonrpc": "2.0", "id": 0, "result": {"content": []}}'
    with (
        Mcp(events=events) as mcp,
        Config(tmp_path, notes={"url": mcp.url, "max_result_bytes": 1000}).serve() as server,
    ):
        expected = {
            b"data: " * events + good[:30] + b"DIES": "the connection to the MCP server 'notes' failed",
            b"data: " * events + b"<html>\n\n": "sent invalid JSON",
            b"data: " * events + b'"text"\n\n': "sent a message that is no object",
            b"data: " * events + good + b"\n\n": "sent no response to the request",
            b"": "sent no response" if events else "sent invalid JSON",
            b"data: " * events + b" " * 2000: "sent more than 1000 bytes",
        }
        for body, words in expected.items():
            mcp.raw = body
            status, code, message = error_of(call(server, "echo", text="a"))
            assert (status, code) == (503, "mcp_server_failed")
            assert words in message
            assert "127.0.0.1" not in message
        mcp.raw = None
        assert call(server, "echo", text="fine").json()["content"] == "fine"
        for refusal in (302, 401, 500):
            mcp.status = refusal
            assert str(refusal) in error_of(call(server, "echo", text="a"))[2]
        mcp.status = None
        mcp.version = "1999-01-01"
        mcp.known.clear()
        assert "1999-01-01" in error_of(call(server, "echo", text="a"))[2]


def test_a_server_that_fails_does_not_disturb_the_others(tmp_path: Path, mcp: Mcp) -> None:
    with Config(tmp_path, away={"url": "http://127.0.0.1:9/mcp"}, notes=mcp).serve() as server:
        found = listed(server)
        assert [tool["function"]["name"] for tool in found["data"]] == ["notes__echo", "notes__fail"]
        problem = found["servers"][0]["error"]
        assert problem["code"] == "mcp_server_unreachable"
        assert problem["message"] == "the MCP server 'away' cannot be reached: ConnectError"
        assert error_of(call(server, "echo", "away"))[:2] == (503, "mcp_server_unreachable")
        assert error_of(call(server, "echo", "nowhere"))[:2] == (404, "mcp_server_not_found")


def test_a_call_that_takes_too_long_is_cancelled(tmp_path: Path, mcp: Mcp) -> None:
    mcp.add("wait", mcp.wait)
    with Config(tmp_path, notes={"url": mcp.url, "timeout": 3}).serve() as server:
        status, code, message = error_of(call(server, "wait"))
        assert (status, code) == (503, "mcp_server_timeout")
        assert "server.mcp_servers.notes.timeout" in message
        _expect_cancellation(mcp)


def test_a_client_that_leaves_cancels_its_call(tmp_path: Path, mcp: Mcp) -> None:
    mcp.add("wait", mcp.wait)
    with Config(tmp_path, notes=mcp).serve() as server:
        with Wire(server.url) as wire:
            wire.send(post("/v1/mcp/call", {"server": "notes", "tool": "wait"}))
            wait_for(mcp.held.is_set, 30, "the call")
        _expect_cancellation(mcp)
        wait_for(lambda: 'outcome="left"' in server.client.get("/metrics").text, 30, "the count of the call")


def _expect_cancellation(mcp: Mcp) -> None:
    wait_for(lambda: "notifications/cancelled" in mcp.methods(), 30, "the cancellation")
    begun = next(message for _, _, message in mcp.requests if message.get("method") == "tools/call")
    cancelled = next(message for _, _, message in mcp.requests if message.get("method") == "notifications/cancelled")
    assert cancelled["params"]["requestId"] == begun["id"]


def test_calls_are_logged_and_counted(tmp_path: Path, mcp: Mcp) -> None:
    config = Config(tmp_path, notes=mcp)
    config.keys = {"anna": {"key": "anna", "mcp_servers": ["notes"]}}
    with config.serve() as server:
        headers = {"authorization": "Bearer anna"}
        for tool in ("echo", "fail"):
            body = {"server": "notes", "tool": tool, "arguments": {"text": "secret words"}}
            assert server.client.post("/v1/mcp/call", json=body, headers=headers).status_code == 200
        server.wait_for_line("tool called", "fail", "tool_error", "anna")
        assert not any("secret words" in line for line in server.output)
        page = server.client.get("/metrics").text
        for outcome in ("ok", "tool_error"):
            assert f'paddock_mcp_calls_total{{key="anna",outcome="{outcome}",server="notes"}} 1' in page
        assert 'paddock_mcp_call_duration_seconds_count{server="notes"} 2' in page
        usage = server.client.get("/v1/usage", headers=headers).json()
        assert usage["requests"] == 2, "calls count as requests of the key"


def test_a_key_uses_the_servers_of_its_settings(tmp_path: Path, mcp: Mcp) -> None:
    with Mcp() as other:
        config = Config(tmp_path, notes=mcp, files=other)
        config.keys = {
            "boss": {"key": "boss", "admin": True},
            "anna": {"key": "anna", "mcp_servers": ["no*"]},
            "ben": {"key": "ben"},
        }
        with config.serve() as server:
            seen = {
                key: [each["name"] for each in listed(server, authorization=f"Bearer {key}")["servers"]]
                for key in config.keys
            }
            assert seen == {"boss": ["notes", "files"], "anna": ["notes"], "ben": []}
            for key, name, status in [
                *(("boss", "notes", 200), ("boss", "files", 200), ("anna", "notes", 200)),
                *(("anna", "files", 403), ("anna", "nowhere", 404), ("ben", "notes", 403), ("nobody", "notes", 401)),
            ]:
                body = {"server": name, "tool": "echo", "arguments": {"text": key}}
                headers = {"authorization": f"Bearer {key}"}
                assert server.client.post("/v1/mcp/call", json=body, headers=headers).status_code == status, (key, name)


def test_pages_of_other_origins_need_a_key(tmp_path: Path, mcp: Mcp) -> None:
    foreign = {"origin": "http://localhost:5000", "sec-fetch-site": "cross-site"}
    config = Config(tmp_path, notes=mcp)
    body = {"server": "notes", "tool": "echo", "arguments": {"text": "a"}}
    with config.serve() as server:
        for response in (
            server.client.get("/v1/mcp/tools", headers=foreign),
            server.client.post("/v1/mcp/call", json=body, headers=foreign),
        ):
            assert error_of(response)[:2] == (403, "origin_not_allowed")
    assert mcp.requests == []
    config.keys = {"anna": {"key": "anna", "mcp_servers": ["notes"]}}
    with config.serve() as server:
        headers = foreign | {"authorization": "Bearer anna"}
        assert server.client.post("/v1/mcp/call", json=body, headers=headers).status_code == 200


def test_headers_may_have_values_of_the_environment(tmp_path: Path, mcp: Mcp) -> None:
    headers = {"Authorization": "Bearer ${NOTES_TOKEN}", "X-Fixed": "a"}
    config = Config(tmp_path, notes={"url": mcp.url, "headers": headers})
    with config.serve(NOTES_TOKEN="t0ken") as server:
        assert call(server, "echo", text="a").status_code == 200
    assert {sent["authorization"] for _, sent, _ in mcp.requests} == {"Bearer t0ken"}
    assert {sent["x-fixed"] for _, sent, _ in mcp.requests} == {"a"}


def test_a_reload_touches_only_the_servers_that_changed(tmp_path: Path, mcp: Mcp) -> None:
    mcp.add("wait", mcp.wait)
    with Mcp() as other, ThreadPoolExecutor(1) as pool:
        config = Config(tmp_path, notes=mcp, files=other)
        config.keys = {"boss": {"key": "boss", "admin": True}}
        with config.serve() as server:
            server.client.headers["authorization"] = "Bearer boss"
            assert call(server, "echo", "files", text="a").status_code == 200
            waiting = pool.submit(call, server, "wait")
            wait_for(mcp.held.is_set, 30, "the call")

            config.servers = {"notes": {"url": mcp.url, "timeout": 30}, "files": {"url": other.url}}
            config.servers["more"] = {"url": other.url}
            config.write()
            reloaded = server.client.post("/admin/reload")
            assert (reloaded.status_code, reloaded.json()["restart_needed"]) == (200, [])
            assert not waiting.done() and "DELETE" not in mcp.methods(), "a running call is not disturbed"
            mcp.released.set()
            assert waiting.result(300).json()["content"] == "waited"
            wait_for(lambda: "DELETE" in mcp.methods(), 30, "the end of the old session")
            assert call(server, "echo", text="b").status_code == 200
            assert mcp.methods().count("initialize") == 2
            assert call(server, "echo", "files", text="c").status_code == 200
            assert "DELETE" not in other.methods() and other.methods().count("initialize") == 1

            config.servers = {"notes": {"url": mcp.url, "headers": {"X-Key": "${PADDOCKS_MISSING}"}}}
            config.write()
            status, _, message = error_of(server.client.post("/admin/reload"))
            assert status == 400
            assert "server.mcp_servers.notes.headers.X-Key" in message and "PADDOCKS_MISSING" in message
            assert call(server, "echo", "files", text="d").status_code == 200, "nothing was changed"

            config.servers = {}
            config.write()
            assert server.client.post("/admin/reload").status_code == 200
            assert listed(server) == {"object": "list", "data": [], "servers": []}
            assert error_of(call(server, "echo", text="e"))[1] == "mcp_server_not_found"


def test_the_flag_adds_servers(tmp_path: Path, mcp: Mcp) -> None:
    config = Config(tmp_path, files=mcp)
    flags = ("--mcp", f"notes={mcp.url}", "--mcp", f"more={mcp.url}")
    with Server("-m", "fake:", "--config", str(config.file), *flags) as server:
        assert [each["name"] for each in listed(server)["servers"]] == ["files", "notes", "more"]


@full
def test_answers_match_the_schema(tmp_path: Path, mcp: Mcp) -> None:
    with Config(tmp_path, notes=mcp).serve() as server:
        document = server.client.get("/openapi.json").json()
        schemas = document["components"]["schemas"]
        assert set(listed(server)) == set(schemas["McpTools"]["properties"])
        assert set(listed(server)["data"][0]) == set(schemas["McpTool"]["properties"])
        assert set(call(server, "echo", text="a").json()) == set(schemas["ToolCallResult"]["properties"])
        for body, param in (
            ({"tool": "echo"}, "server"),
            ({"server": "notes", "tool": "a", "arguments": []}, "arguments"),
        ):
            refused = server.client.post("/v1/mcp/call", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert re.search(r"/v1/mcp/tools", server.client.get("/tools").text)
