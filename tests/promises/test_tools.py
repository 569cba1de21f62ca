"""Promise 4 for tools: a required call is made, matches its schema and is parsed in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.server import Server, chat_body, events
from tests.tiers import full

CHAT = "/v1/chat/completions"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the next days.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Bern", "Basel"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "hourly": {"type": "boolean"},
            },
            "required": ["city", "days"],
        },
    },
}
# With random weights the reasoning hardly ever ends.
UNTHINKING = {"enable_thinking": False}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
LOOSE: Any = {"type": "function", "function": {"name": "clock", "parameters": {"not": {"required": ["zone"]}}}}
"""Cannot be enforced, so it may only be called voluntarily."""
TOOLS = [WEATHER, CLOCK]
SCHEMAS: dict[str, Any] = {
    "get_weather": WEATHER["function"]["parameters"],
    "clock": {"type": "object", "maxProperties": 0},
}


@pytest.fixture(scope="module", params=[pytest.param("demo", marks=full), "caller"])
def server(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Server]:
    """A model whose template has no tools, and one that writes calls with special tokens."""
    if request.param == "demo":
        yield request.getfixturevalue("demo_server")
    else:
        with Server("-m", str(tiny_models["caller"]), "-c", "1024") as server:
            yield server


def _ask(server: Server, **options: Any) -> dict[str, Any]:
    body = server.chat("How will the weather be?", **({"max_tokens": 200, "tools": TOOLS} | UNTHINKING | options))
    choice: dict[str, Any] = body["choices"][0]
    return choice


def _check(choice: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = choice["message"]["tool_calls"]
    for call in calls:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    assert len({call["id"] for call in calls}) == len(calls)
    return calls


def test_required_call(server: Server) -> None:
    for seed in range(3):
        choice = _ask(server, tool_choice="required", parallel_tool_calls=False, temperature=1.5, seed=seed)
        assert choice["finish_reason"] == "tool_calls"
        assert len(_check(choice)) == 1
        assert choice["message"]["content"] is None


def test_named_function(server: Server) -> None:
    for name in SCHEMAS:
        choice = _ask(server, tool_choice={"type": "function", "function": {"name": name}})
        assert [call["function"]["name"] for call in _check(choice)] == [name]
        assert choice["finish_reason"] == "tool_calls"


def test_several_completions_with_calls(server: Server) -> None:
    options = {"n": 2, "seed": 5, "temperature": 1.0, "deterministic": True}
    body = {
        **chat_body("How?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False),
        **options,
        **UNTHINKING,
    }
    first, again = (server.client.post(CHAT, json=body).json()["choices"] for _ in range(2))
    calls = [call for choice in first for call in _check(choice)]
    assert len({call["id"] for call in calls}) == 2
    assert first == again


def test_streamed_calls(server: Server) -> None:
    options: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    whole = _ask(server, seed=3, deterministic=True, **options)
    body = chat_body(
        "How will the weather be?", tools=TOOLS, seed=3, stream=True, deterministic=True, **options, **UNTHINKING
    )
    with server.client.stream("POST", CHAT, json=body) as response:
        choices = [json.loads(data)["choices"][0] for _, data in events(response) if data != "[DONE]"]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", [])]
    assert parts[0]["type"] == "function"
    assert [part["index"] for part in parts] == [0] * len(parts)
    assert all(part.keys() == {"index", "function"} for part in parts[1:])
    call = _check(whole)[0]
    assert (parts[0]["id"], parts[0]["function"]["name"]) == (call["id"], call["function"]["name"])
    assert "".join(part["function"].get("arguments", "") for part in parts) == call["function"]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_tool_choice_none(server: Server) -> None:
    options: dict[str, Any] = {"max_tokens": 32, "temperature": 0, "deterministic": True, **UNTHINKING}
    with_none = _ask(server, tool_choice="none", **options)
    without = server.chat("How will the weather be?", **options)["choices"][0]
    assert with_none == without


def test_tool_choice_auto(server: Server) -> None:
    choice = _ask(server, temperature=0, max_tokens=32)
    assert choice["finish_reason"] in ("stop", "length", "tool_calls")
    assert choice["message"].get("tool_calls") or choice["message"]["content"]


def test_reasoning_is_separated_and_counted(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["caller"]), "-c", "1024") as server:
        body = server.chat("hi", enable_thinking=True, max_tokens=20, temperature=0, deterministic=True)
        message = body["choices"][0]["message"]
        assert message["reasoning_content"]
        assert message["content"] == ""
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20
        for field in ({"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "high"}):
            same = server.chat("hi", max_tokens=20, temperature=0, deterministic=True, **field)
            assert same["choices"] == body["choices"]
        raw = server.chat(
            "hi", enable_thinking=True, max_tokens=20, temperature=0, deterministic=True, reasoning_format="none"
        )
        assert raw["choices"][0]["message"]["content"].strip() == message["reasoning_content"]
        off = server.chat("hi", reasoning_effort="none", max_tokens=20, temperature=0)["choices"][0]["message"]
        assert off["content"] and "reasoning_content" not in off


def test_forced_call_with_a_format(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        for response_format in (form, {"type": "json_object"}):
            given: Any = {"tools": TOOLS, "response_format": response_format, "extra_body": UNTHINKING}
            answer = client.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": "How?"}],
                tool_choice={"type": "function", "function": {"name": "get_weather"}},
                max_tokens=400,
                seed=7,  # a model with random weights may fill any number of tokens with one text
                **given,
            )
            assert answer.choices[0].message.tool_calls is not None
            (call,) = answer.choices[0].message.tool_calls
            assert call.type == "function"
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["get_weather"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a+"}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 1 << 99}}}]},
            "tools[0].function.parameters",
        ),
        ({"chat_template_kwargs": {"a": 1 << 99}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": []}], "tools": [{}]}, "tools[0].type"),
    ],
)
def test_unsupported_tool_parameters_are_refused(demo_server: Server, fields: dict[str, Any], param: str) -> None:
    response = demo_server.client.post(CHAT, json={**chat_body("hi", max_tokens=4), **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "arguments",
    ["[1]", "{", '{"a": NaN}', '{"a":' * 5000 + "1" + "}" * 5000, f'{{"a": {1 << 99}}}', '{"a": "\\ud800"}'],
)
def test_arguments_must_be_an_object(fake_server: Server, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    response = fake_server.client.post(CHAT, json={"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "messages[0].tool_calls[0].function"


def test_prefilled_message_is_continued(demo_server: Server) -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, three,"}]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0}
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        response = demo_server.client.post(CHAT, json=body | more).json()
        assert response["choices"][0]["message"]["content"].startswith(" four")
    answered = demo_server.client.post(CHAT, json=body | {"add_generation_prompt": True}).json()
    assert not answered["choices"][0]["message"]["content"].startswith(" four")


def test_voluntary_call(fake_server: Server) -> None:
    content_text = (
        '{"name": "get_weather", "arguments": {"city": "Bern", "days": 2}}\n{"name": "clock", "arguments": {}}'
    )
    body = fake_server.chat(f"say: {content_text}", tools=TOOLS)
    choice = body["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "get_weather", "arguments": '{"city": "Bern", "days": 2}'},
        {"name": "clock", "arguments": "{}"},
    ]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


@pytest.mark.parametrize(
    "content_text", ['{"name": "clock", "arguments": {"a": ]}}', '{"name": "clock", "arguments": {"a": 1']
)
def test_a_malformed_call_becomes_content(fake_server: Server, content_text: str) -> None:
    choice = fake_server.chat(f"say: {content_text}", tools=[LOOSE])["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": content_text, "malformed_tool_call": True}
    assert choice["finish_reason"] == "stop"
    body = chat_body(f"say: {content_text}", tools=[LOOSE], stream=True)
    with fake_server.client.stream("POST", CHAT, json=body) as response:
        choices = [json.loads(data)["choices"][0] for _, data in events(response) if data != "[DONE]"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == content_text
    assert choices[-1]["delta"] == {"malformed_tool_call": True}
    assert choices[-1]["finish_reason"] == "stop"


def test_a_started_call_matches_its_schema(fake_server: Server) -> None:
    """Also if no call is required: once a call starts, its schema is enforced."""
    content_text = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 99}}'
    choice = fake_server.chat(f"say: {content_text}", tools=TOOLS, parallel_tool_calls=False)["choices"][0]
    assert [call["function"]["name"] for call in _check(choice)] == ["get_weather"]
    answer = '{"name": "get_whether", "arguments": {"city": "Paris"}}'
    assert fake_server.chat(f"say: {answer}", tools=TOOLS)["choices"][0]["message"]["content"] == answer


def test_json_without_tools_is_content(fake_server: Server) -> None:
    content_text = '{"name": "clock", "arguments": {}}'
    message = fake_server.chat(f"say: {content_text}")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": content_text}


# ── the openai package ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_tool_loop(client: openai.OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How will the weather be?"}]
    asked = client.chat.completions.create(
        model="any",
        messages=messages,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=400,
        extra_body=UNTHINKING,
    )
    message = asked.choices[0].message
    assert message.tool_calls
    messages.append(message.to_dict())  # type: ignore[arg-type]
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 °C"})
    answer = client.chat.completions.create(
        model="any", messages=messages, tools=TOOLS, max_tokens=16, extra_body=UNTHINKING
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_openai_parses_arguments(client: openai.OpenAI) -> None:
    class Trip(pydantic.BaseModel):
        """A trip."""

        days: int = pydantic.Field(ge=1, le=9)
        by_train: bool

    with client.chat.completions.stream(
        model="any",
        messages=[{"role": "user", "content": "Plan a trip."}],
        tools=[openai.pydantic_function_tool(Trip)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=400,
        seed=1,
        extra_body=UNTHINKING,
    ) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls
    trip = calls[0].function.parsed_arguments
    assert isinstance(trip, Trip)
    assert 1 <= trip.days <= 9
