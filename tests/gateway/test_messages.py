"""`/v1/messages` in detail; `tests/promises/test_dialects.py` runs the `anthropic` package against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from paddock.gateway.dialects.anthropic.request import CountTokensRequest
from tests.server import Server, events

TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
HELLO = [{"role": "user", "content": "say: hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:", "--api-key", "secret") as server:
        server.client.headers["x-api-key"] = "secret"
        yield server


def _rendered(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    body = json.dumps({"messages": messages} | more)
    return CountTokensRequest.model_validate_json(body).prompt().messages


def test_blocks_become_template_messages() -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    sent = _rendered(
        {"role": "user", "content": [{"type": "text", "text": "What is"} | marked, {"type": "text", "text": "it?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Well?"},
                {"type": "tool_result", "tool_use_id": "c1", "content": "it ran away", "is_error": True},
            ],
        },
        system=[{"type": "text", "text": "Be brief."} | marked, {"type": "text", "text": "Be kind."}],
    )
    function = {"name": "look", "arguments": {"at": "it"}}
    assert sent == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "What is\nit?"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "Let me look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Error: it ran away"},
        {"role": "user", "content": "Well?"},
    ]


def test_system_messages_within_the_conversation(server: Server) -> None:
    """Claude Code sends instructions there."""
    late = {"role": "system", "content": [{"type": "text", "text": "It is noon."}]}
    sent = _rendered({"role": "user", "content": "say: hello"}, late, system="Be kind.")
    assert [message["role"] for message in sent] == ["system", "user", "system"]
    assert sent[2]["content"] == "It is noon."
    body = {"messages": [*HELLO, late, {"role": "user", "content": "say: hi"}], "max_tokens": 8}
    answer = server.client.post("/v1/messages", json=body)
    assert answer.json()["content"][0]["text"] == "hi", answer.text


def test_a_message_is_answered(server: Server) -> None:
    answer = server.client.post("/v1/messages", json={"messages": HELLO, "max_tokens": 100, "model": "m"}).json()
    assert answer["content"] == [{"type": "text", "text": "hello", "citations": None}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "m")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] > 0


def test_stop_reason(server: Server) -> None:
    def end(**more: Any) -> tuple[str, str | None]:
        body = {"messages": HELLO, "max_tokens": 100} | more
        answer = server.client.post("/v1/messages", json=body).json()
        with server.client.stream("POST", "/v1/messages", json=body | {"stream": True}) as response:
            sent = [json.loads(data) for _, data in events(response)]
        assert sent[-2]["delta"] == {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
        return answer["stop_reason"], answer["stop_sequence"]

    assert end(max_tokens=2) == ("max_tokens", None)
    assert end(stop_sequences=["x", "ll"]) == ("stop_sequence", "ll")
    assert end() == ("end_turn", None)


def test_stream_events_describe_blocks(server: Server) -> None:
    body = {"messages": HELLO, "max_tokens": 100, "stream": True}
    with server.client.stream("POST", "/v1/messages", json=body) as response:
        sent = [(name, json.loads(data)) for name, data in events(response)]
    assert all(name == data["type"] for name, data in sent)
    names = [name for name, _ in sent if name != "content_block_delta"]
    assert names == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert "".join(data["delta"]["text"] for name, data in sent if name == "content_block_delta") == "hello"


def test_cached_tokens_are_counted_separately(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "say: a text that comes twice"}], "max_tokens": 8}
    counted = server.client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    server.client.post("/v1/messages", json=body)
    usage = server.client.post("/v1/messages", json=body).json()["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}}, "output_config.format"),
    ],
)
def test_unsupported_values_are_refused_by_name(server: Server, more: dict[str, Any], param: str) -> None:
    response = server.client.post("/v1/messages", json={"messages": HELLO, "max_tokens": 8} | more)
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["error"]["param"] == param


def test_fields_of_coding_agents_are_accepted(server: Server) -> None:
    """Their additional fields do not change the answer."""
    more = {
        "metadata": {"user_id": "x"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "tools": [TOOL | {"eager_input_streaming": True, "cache_control": {"type": "ephemeral"}}],
        "temperature": 1,
    }
    response = server.client.post("/v1/messages?beta=true", json={"messages": HELLO, "max_tokens": 8} | more)
    assert response.status_code == 200, response.text
    assert "x-paddock-ignored-fields" not in response.headers


def test_errors_outside_the_route_have_the_same_shape(server: Server) -> None:
    for path, headers, status, kind in (
        ("/v1/messages", {"x-api-key": "wrong"}, 401, "authentication_error"),
        ("/v1/messages/none", {}, 404, "not_found_error"),
    ):
        response = server.client.post(path, json={}, headers=headers)
        assert response.status_code == status
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == kind


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions", "/api/chat"])
def test_compressed_bodies_are_refused_by_name(server: Server, path: str) -> None:
    response = server.client.post(path, content=b"x", headers={"content-encoding": "zstd"})
    assert response.status_code == 400 and "content-encoding 'zstd'" in response.text
    assert server.client.post(path, content=b"{", headers={"content-encoding": "identity"}).status_code == 400
