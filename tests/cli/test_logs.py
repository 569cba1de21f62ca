"""The log: one complete line per event, without prompts unless they are requested."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.forking import run_command
from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"


def _lines(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(server.output)]


def _requests(server: Server, path: str) -> list[dict[str, Any]]:
    return [line for line in _lines(server) if line["message"] == "request" and line["path"] == path]


def _await_request(server: Server, request_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [line for line in _lines(server) if line.get("duration_ms") and line["request_id"] == request_id]
        return bool(found)

    wait_for(look, 10, f"the line of {request_id}")
    return found[0]


def test_a_json_line_has_all_fields_of_a_request() -> None:
    with Server("-m", "fake:", "--log-format", "json", "-v") as server:
        server.chat("say: hello there")
        response = server.client.post(CHAT, json=chat_body("say: hello there"), headers={"X-Request-Id": "mine-1"})
        assert response.headers["x-request-id"] == "mine-1"
        line = _await_request(server, "mine-1")
        usage = response.json()["usage"]
        assert line["duration_ms"] > 0
        assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
        assert (line["model"], line["finish_reason"]) == ("fake", "stop")
        assert line["prompt_tokens"] == usage["prompt_tokens"]
        assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
        assert line["completion_tokens"] == usage["completion_tokens"]
        with server.client.stream("POST", CHAT, json=chat_body("say: a b c", stream=True, max_tokens=2)) as stream:
            assert list(events(stream))
        line = _await_request(server, stream.headers["x-request-id"])
        assert (line["completion_tokens"], line["finish_reason"]) == (2, "length")
        assert server.stop() == 0
    assert all({"timestamp", "level", "message"} <= line.keys() for line in _lines(server))
    assert not any("hello there" in line for line in server.output), "nobody asked for prompts"


def test_embeddings_have_a_line() -> None:
    with Server("-m", "fake:", "--embedding", "--log-format", "json") as server:
        response = server.client.post("/v1/embeddings", json={"input": ["one", "two"]})
        line = _await_request(server, response.headers["x-request-id"])
        assert (line["model"], line["prompt_tokens"]) == ("fake", response.json()["usage"]["prompt_tokens"])


def test_prompts_are_logged_on_demand() -> None:
    with Server("-m", "fake:", "--log-format", "json", "--log-prompts") as server:
        response = server.client.post(CHAT, json=chat_body("say: a secret"))
        line = _await_request(server, response.headers["x-request-id"])
        assert json.loads(line["body"])["messages"][0]["content"] == "say: a secret"


@pytest.mark.parametrize("presented", ["a b", "x" * 200, "-", "é"])
def test_an_invalid_request_id_is_replaced(fake_server: Server, presented: str) -> None:
    response = fake_server.client.get("/health", headers=[(b"x-request-id", presented.encode())])
    assert response.headers["x-request-id"].startswith("req_")


def test_every_error_has_the_request_id(fake_server: Server) -> None:
    for response in (
        fake_server.client.get("/nowhere"),
        fake_server.client.post(CHAT, json={"messages": []}),
        fake_server.client.post(CHAT, content=b"{"),
        fake_server.client.post("/v1/messages", json={"messages": 1}),
        fake_server.client.get("/health", headers={"host": "evil.example"}),
    ):
        assert response.json()["request_id"] == response.headers["x-request-id"]
        assert {"message", "type", "param", "code"} == set(response.json()["error"])
    for path in (CHAT, "/v1/messages", "/v1/responses", "/completion"):
        text = "crash: now"
        body: dict[str, Any] = {"input": text} if "responses" in path else chat_body(text, max_tokens=9)
        if path == "/completion":
            body = {"prompt": text}
        with fake_server.client.stream("POST", path, json={**body, "stream": True}) as stream:
            told = [json.loads(data) for _, data in events(stream)] if stream.status_code == 200 else []
        for event in told:
            if event.get("error"):
                assert event["request_id"] == stream.headers["x-request-id"]


@full
def test_a_broken_stream_is_logged_as_an_error() -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: chat_body("hello"),
        "/v1/completions": {"prompt": "hello", "max_tokens": 500},
        "/completion": {"prompt": "hello"},
        "/v1/messages": chat_body("hello", max_tokens=500),
        "/v1/responses": {"input": "hello"},
    }
    with Server("-m", "fake:delay=0.05", "--log-format", "json") as server:
        for path, body in bodies.items():
            server.chat("say: hello")  # so that it is not left alone after too many crashes in a row
            with server.client.stream("POST", path, json={**body, "stream": True}) as stream:
                told = events(stream)
                for _ in range(8):
                    next(told)  # by then the answer has begun, in every dialect
                os.kill(server.workers()[0], signal.SIGKILL)
                rest = "".join(data for _, data in told)
            assert stream.status_code == 200 and "worker_crashed" in rest, path
            line = _await_request(server, stream.headers["x-request-id"])
            assert (line["level"], line["status"], line["error"]) == ("error", 200, "worker_crashed"), path
            assert line["client"] == "127.0.0.1" and "SIGKILL" in line["reason"]
        metrics = server.client.get("/metrics").text
        counted = re.search(r'^paddock_requests_total\{.*outcome="worker_crashed".*\} (\S+)$', metrics, re.MULTILINE)
        assert counted is not None and float(counted[1]) == len(bodies)


def test_errors_are_logged_with_code_and_level() -> None:
    with Server("-m", "fake:", "--log-format", "json") as server:
        refused = server.client.post(CHAT, json={"messages": []})
        line = _await_request(server, refused.headers["x-request-id"])
        assert (line["level"], line["error"]) == ("info", refused.json()["error"]["code"])
        assert "reason" not in line, "what a client sent wrongly is not repeated"
        crashed = server.client.post(CHAT, json=chat_body("crash: now"))
        line = _await_request(server, crashed.headers["x-request-id"])
        assert (line["level"], line["status"], line["error"]) == ("warning", 503, "worker_crashed")


def test_log_lines_cannot_be_forged() -> None:
    with Server("-m", "fake:") as server:
        server.client.get("/a%0A2026-01-01T00:00:00Z%20[error]%20forged%1B[31m")
        wait_for(lambda: any("forged" in line for line in server.output), 10, "the line")
    line = next(line for line in server.output if "forged" in line)
    assert "request" in line and "\\n" in line and "\x1b[31m" not in line


def test_the_log_is_also_written_to_a_file_that_can_be_rotated(tmp_path: Path) -> None:
    file = tmp_path / "paddock.log"
    with Server("-m", "fake:", "--log-file", str(file), "--log-colors", "on", "--no-log-timestamps") as server:
        server.client.get("/v1/models")
        wait_for(lambda: "path=/v1/models" in file.read_text(), 10, "the line of the request")
        wait_for(
            lambda: any("\x1b[" in line and "/v1/models" in line for line in server.output),
            10,
            "the same line on stderr",
        )
        assert any("\x1b[" in line for line in server.output)
        text = file.read_text()
        assert "\x1b" not in text and server.url in text
        assert not re.search(r"^\d{4}-\d\d-\d\dT", text, re.M)
        assert file.stat().st_mode & 0o777 == 0o600
        file.rename(tmp_path / "paddock.log.1")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: file.exists() and "reloaded" in file.read_text(), 10, "the new file")
    before = file.read_text()
    with Server("-m", "fake:", "--log-file", str(file), "--log-format", "json") as server:
        wait_for(lambda: '"listening' in file.read_text() or "Serving" in file.read_text(), 10, "its first line")
    assert file.read_text().startswith(before), "lines are appended"


def test_the_verbosity_of_llama_server_applies_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "quiet.log"
    with Server("-m", "fake:", "--log-file", str(file), "-lv", "2") as server:
        server.client.get("/v1/models")
    assert "path=/v1/models" not in file.read_text()


def test_a_log_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = run_command("serve", "-m", "fake:", "--log-file", str(tmp_path / "missing" / "a.log"), cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot write the log file" in done.stderr and "--log-file" in done.stderr


@full
def test_the_log_can_be_disabled() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", "paddock", "serve", "-m", "fake:", "--port", str(port), "--log-disable", "-v"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        wait_for(lambda: _answers(port), 30, "the server to listen")
        process.terminate()
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait(30) == 0


@full
def test_a_closed_log_pipe_does_not_stop_the_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "paddock", "serve", "-m", "fake:", "--port", "0", "--log-format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        process.stdout.close()
        for _ in range(3):
            assert httpx.get(f"{url}/v1/models", timeout=20).json()["data"][0]["id"] == "fake"
        process.terminate()
        assert process.wait(30) == 0


@full
def test_a_failed_start_is_logged_as_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paddock", "serve", "-m", "/no/such.gguf", "--log-format", "json"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    line = json.loads(done.stdout)
    assert (line["level"], done.stderr) == ("critical", b"")
    assert "/no/such.gguf" in line["message"]


def test_lines_of_libllama_have_level_and_model(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["llama"]), "--log-format", "json", "-v", "-c", "256") as server:
        assert server.client.post("/completion", json={"prompt": "a", "n_predict": 1}).status_code == 200
    lines = [line for line in _lines(server) if line.get("pid")]
    assert any("llama_context" in line["message"] and line["level"] == "debug" for line in lines)
    assert {line["model"] for line in lines} == {"llama"}
    assert not any(line["message"].startswith("<") or not line["message"] for line in lines)


def test_the_last_lines_of_a_worker_are_part_of_the_crash_line() -> None:
    with Server("-m", "fake:", "--log-format", "json") as server:
        assert server.client.post(CHAT, json=chat_body("crash:")).status_code == 503
        wait_for(lambda: any(line["message"] == "worker exited" for line in _lines(server)), 10, "the line")
        line = next(line for line in _lines(server) if line["message"] == "worker exited")
        assert (line["level"], line["model"]) == ("error", "fake")
        assert any("Fatal Python error" in said for said in line["output"])


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=200).status_code == 200
    except httpx.TransportError:
        return False
