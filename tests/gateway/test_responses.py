"""`/v1/responses` in detail; `tests/promises/test_dialects.py` runs the `openai` package against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from paddock.gateway.dialects.responses.request import ResponseRequest
from tests.server import Server, events

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:") as server:
        yield server


def _rendered(**body: Any) -> list[dict[str, Any]]:
    return ResponseRequest.model_validate_json(json.dumps(body)).prompt().messages


def test_a_turn_of_several_items_is_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"it"}'}
    sent = _rendered(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Be kind."},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "What is"}, {"type": "input_text", "text": "it?"}],
            },
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "id": "rs_1"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            call,
            call | {"call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "a horse"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a hen"}]},
            {"role": "assistant", "content": "A horse."},
            {"role": "assistant", "content": "And a hen."},
        ],
    )
    function = {"name": "look", "arguments": {"at": "it"}}
    assert sent == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "What is\nit?"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a horse"},
        {"role": "tool", "tool_call_id": "c2", "content": "a hen"},
        {"role": "assistant", "content": "A horse."},
        {"role": "assistant", "content": "And a hen."},
    ]


def test_request_parameters_are_echoed(server: Server) -> None:
    body = {
        "input": "say: hello",
        "instructions": "x",
        "metadata": {"a": "b"},
        "tools": [TOOL],
        "tool_choice": "none",
        "temperature": 0.5,
        "max_output_tokens": 4000,
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    answer = server.client.post("/v1/responses", json=body).json()
    assert answer["status"] == "completed"
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["output"][0]["content"][0]["text"] == "hello"
    assert answer["store"] is True
    for name in ("instructions", "metadata", "tool_choice", "temperature", "max_output_tokens"):
        assert answer[name] == body[name]
    assert answer["tools"][0]["name"] == "look"
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]


def test_truncated_answer_is_incomplete(server: Server) -> None:
    body = {"input": "say: hello there", "max_output_tokens": 3}
    answer = server.client.post("/v1/responses", json=body).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][-1]["status"] == "incomplete"
    with server.client.stream("POST", "/v1/responses", json=body | {"stream": True}) as response:
        name, data = list(events(response))[-1]
    assert name == json.loads(data)["type"] == "response.incomplete"


def test_events_are_numbered_and_end_with_the_response(server: Server) -> None:
    body = {"input": "say: hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}
    with server.client.stream("POST", "/v1/responses", json=body) as response:
        sent = [(name, json.loads(data)) for name, data in events(response)]
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    assert all(name == data["type"] for name, data in sent)
    text = "".join(data["delta"] for name, data in sent if name == "response.output_text.delta")
    final = sent[-1][1]["response"]
    assert final["output"][0]["content"][0]["text"] == text == "hello"
    assert len(final["output"][0]["content"][0]["logprobs"]) >= 5
    added = next(data for name, data in sent if name == "response.output_item.added")
    assert added["item"] == {"type": "message", "id": final["output"][0]["id"], "role": "assistant",
                             "status": "in_progress", "content": []}  # fmt: skip


AGENT = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [TOOL | {"strict": False}]}


def test_functions_in_a_namespace(server: Server) -> None:
    """Codex groups functions. A call names the namespace, and comes back with it."""
    body = {
        "input": "x",
        "tools": [TOOL, AGENT, {"type": "web_search", "external_web_access": True}],
        "tool_choice": {"type": "function", "name": "agents__look"},
        "parallel_tool_calls": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "x",
        "client_metadata": {"session_id": "x"},
        "stream": True,
    }
    with server.client.stream("POST", "/v1/responses", json=body) as response:
        assert response.headers["x-paddock-ignored-fields"] == "tools[2]"
        sent = [json.loads(data) for _, data in events(response)]
    (call,) = sent[-1]["response"]["output"]
    assert (call["namespace"], call["name"]) == ("agents", "look")
    done = next(event for event in sent if event["type"] == "response.output_item.done")
    assert (done["item"]["namespace"], done["item"]["name"]) == ("agents", "look")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a horse"}
    history = [{"role": "user", "content": "x"}, call, result, {"role": "user", "content": "say: hi"}]
    answer = server.client.post("/v1/responses", json={"input": history, "tools": body["tools"]}).json()
    assert answer["output"][0]["content"][0]["text"] == "hi"
    (rendered,) = ResponseRequest(input=history[1:2]).prompt().messages
    assert rendered["tool_calls"][0]["function"]["name"] == "agents__look"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0]"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": []}, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [AGENT, AGENT]}, "tools[1].tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}, "text.format"),
        ({"input": "word " * 9000}, "input"),
    ],
)
def test_unsupported_values_are_refused_by_name(server: Server, more: dict[str, Any], param: str) -> None:
    response = server.client.post("/v1/responses", json={"input": "x"} | more)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_counted_tokens_match_usage(server: Server) -> None:
    body = {"input": "say: hello", "instructions": "x"}
    counted = server.client.post("/v1/responses/input_tokens", json=body).json()
    assert counted["input_tokens"] == server.client.post("/v1/responses", json=body).json()["usage"]["input_tokens"]
