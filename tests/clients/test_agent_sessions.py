"""Sessions of coding agents: requests of the shape that Claude Code and Codex send, turn after turn, with tool calls
and their results. Each turn computes its new text only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server import Server, events

TURNS = 5
INSTRUCTIONS = "You are Claude Code. " + "Be a careful engineer and keep to the conventions of the project. " * 6
RESULT = "total 3\n" + "-rw-r--r-- 1 user user 120 notes.txt\n" * 2
SCHEMA = {"type": "object", "properties": {"command": {"const": "ls -l"}}, "required": ["command"]}
MARK = {"cache_control": {"type": "ephemeral"}}
WRITTEN_AGAIN = 200
"""Tokens of a turn beside its new text: the last call as the template writes it, and the marks of messages."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:n_ctx=8192") as server:
        yield server


def _claude_code(messages: list[dict[str, Any]], turn: int) -> dict[str, Any]:
    """A request of Claude Code: the mark of the cache moves to the last message, and the header is of the request."""
    *earlier, last = messages
    *blocks, block = last["content"]
    header = f"x-anthropic-billing-header: cc_version=2.1.197.84c; cc_entrypoint=cli; cch={turn:05x};"
    texts = (header, "You are Claude Code, a command line.", INSTRUCTIONS)
    late = {"role": "system", "content": "Agents: none."}
    return {
        "model": "fake",
        "messages": [earlier[0], late, *earlier[1:], {**last, "content": [*blocks, block | MARK]}]
        if earlier
        else [{**last, "content": [*blocks, block | MARK]}, late],
        "system": [{"type": "text", "text": text, **(MARK if text is not header else {})} for text in texts],
        "tools": [{"name": "Bash", "description": "Run a command.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "Bash"},
        "metadata": {"user_id": "{}"},
        "max_tokens": 4096,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
        "cache_report": True,
    }


def test_a_session_of_claude_code(server: Server) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "What is here?"}]}]
    headers = {"anthropic-beta": "claude-code-20250219,mid-conversation-system-2026-04-07", "x-app": "cli"}
    for turn in range(TURNS):
        body = _claude_code(messages, turn) | {"normalize": "claude-code"}
        with server.client.stream("POST", "/v1/messages?beta=true", json=body, headers=headers) as response:
            assert response.headers["x-paddock-normalized"] == "claude-code"
            assert "x-paddock-ignored-fields" not in response.headers
            sent = [json.loads(data) for _, data in events(response)]
        assert sent[-2]["delta"]["stop_reason"] == "tool_use"
        block = next(event["content_block"] for event in sent if event["type"] == "content_block_start")
        text = "".join(event["delta"]["partial_json"] for event in sent if event["type"] == "content_block_delta")
        assert json.loads(text) == {"command": "ls -l"}
        report = sent[-2]["cache_report"]
        if turn:
            assert report["computed"] < len(RESULT) + WRITTEN_AGAIN, (turn, report)
            assert sent[-2]["usage"]["cache_read_input_tokens"] == sum(report["reused"].values())
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT, "is_error": False}
        messages += [
            {"role": "assistant", "content": [block | {"input": json.loads(text)}]},
            {"role": "user", "content": [result]},
        ]


def test_the_header_breaks_the_cache_without_the_normalizer(server: Server) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "And now?"}]}]
    reports = []
    for turn in (0xA0, 0xB0):
        body = _claude_code(messages, turn) | {"stream": False}
        reports.append(server.client.post("/v1/messages", json=body).json()["cache_report"])
    assert reports[1]["reason"] == "changed" and "cch=000b0;" in reports[1]["summary"]
    assert reports[1]["computed"] > len(INSTRUCTIONS)


def test_a_session_of_codex(server: Server) -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "name": "exec_command", "description": "Run.", "strict": False, "parameters": SCHEMA},
        {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [
            {"type": "function", "name": "wait", "strict": False, "parameters": {"type": "object", "properties": {}}}]},
        {"type": "web_search", "external_web_access": True},
    ]  # fmt: skip
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": INSTRUCTIONS}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "No sandbox."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<cwd>/tmp</cwd>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is here?"}]},
    ]
    for turn in range(TURNS):
        body = {
            "model": "fake",
            "input": items,
            "tools": tools,
            "tool_choice": {"type": "function", "name": "exec_command"},
            "parallel_tool_calls": False,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "session",
            "client_metadata": {"turn_id": str(turn)},
            "stream": True,
            "cache_report": True,
        }
        with server.client.stream("POST", "/v1/responses", json=body) as response:
            assert response.headers["x-paddock-ignored-fields"] == "tools[2]"
            sent = [json.loads(data) for _, data in events(response)]
        assert sent[-1]["type"] == "response.completed"
        (call,) = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
        report = sent[-1]["response"]["cache_report"]
        if turn:
            assert report["computed"] < len(RESULT) + WRITTEN_AGAIN, (turn, report)
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
        items += [call, result]
