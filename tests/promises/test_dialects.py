"""Real clients of the newer dialects: `openai` at `/v1/responses`, `anthropic` at `/v1/messages`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest

from tests.server import Server
from tests.tiers import full

PLACES: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": PLACES,
    "strict": True,
}
TOOL: Any = {"name": "weather", "description": "The weather.", "input_schema": PLACES}
QUESTION = "How will the weather be?"


class Horse(pydantic.BaseModel):
    name: Literal["Bella", "Max"]
    age: int = pydantic.Field(ge=0, le=40)


@pytest.fixture(scope="module")
def responses(demo_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def messages(demo_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo_server.url, api_key="none", max_retries=0) as client:
        yield client


# ── openai ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_response(responses: openai.OpenAI) -> None:
    answer = responses.responses.create(model="any", input="Say hello.", temperature=0, max_output_tokens=16)
    assert "hello" in answer.output_text.lower()
    assert answer.usage is not None
    assert answer.usage.input_tokens > 10


def test_streamed_response(responses: openai.OpenAI) -> None:
    with responses.responses.stream(
        model="any", input="Say hello.", extra_body={"stop": ["!", ".", ","], "seed": 1}
    ) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == streamed
    assert final.status == "completed"


def test_structured_response(responses: openai.OpenAI) -> None:
    answer = responses.responses.parse(model="any", input="Name a horse.", text_format=Horse, max_output_tokens=64)
    assert isinstance(answer.output_parsed, Horse)


@full
def test_function_call_loop(responses: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": QUESTION}]
    answer = responses.responses.create(
        model="any", input=items, tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.output
    assert call.type == "function_call"
    assert call.name == "weather"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    items += [call, result]
    asked: Any = {"model": "any", "tools": [FUNCTION], "tool_choice": "none", "max_output_tokens": 24}
    asked["extra_body"] = {"deterministic": True, "seed": 1}
    final_answer = responses.responses.create(input=items, **asked)
    assert final_answer.output_text
    continued = responses.responses.create(input=[result], previous_response_id=answer.id, **asked)
    assert continued.output_text == final_answer.output_text
    assert continued.usage is not None and final_answer.usage is not None
    assert continued.usage.input_tokens == final_answer.usage.input_tokens


@full
def test_forced_call_with_a_format(responses: openai.OpenAI) -> None:
    """The format applies to content only. instructor's RESPONSES_TOOLS mode sends both."""
    form: Any = {"format": {"type": "json_schema", "name": "horse", "schema": Horse.model_json_schema()}}
    choices: list[Any] = ["required", {"type": "function", "name": "weather"}]
    for choice in choices:
        answer = responses.responses.create(
            model="any", input=QUESTION, tools=[FUNCTION], tool_choice=choice, parallel_tool_calls=False, text=form
        )
        (call,) = answer.output
        assert call.type == "function_call"
        assert call.name == "weather"


def test_streamed_function_call(responses: openai.OpenAI) -> None:
    with responses.responses.stream(
        model="any", input=QUESTION, tools=[FUNCTION], tool_choice={"type": "function", "name": "weather"}
    ) as stream:
        parts = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert len(parts) > 3
    assert "".join(parts) == call.arguments


def test_refused_response(responses: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        responses.responses.create(model="any", input="word " * 9000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


# ── anthropic ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_message(messages: anthropic.Anthropic) -> None:
    answer = messages.messages.create(
        model="any",
        max_tokens=16,
        system="Be kind.",
        messages=[{"role": "user", "content": "Say hello."}],
        extra_body={"temperature": 0},
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) > 10


def test_streamed_message(messages: anthropic.Anthropic) -> None:
    with messages.messages.stream(
        model="any",
        max_tokens=24,
        messages=[{"role": "user", "content": "Count to five."}],
        extra_body={"temperature": 0},
    ) as stream:
        streamed = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(streamed) > 3
    assert final.content[0].type == "text"
    assert final.content[0].text == "".join(streamed)
    assert 0 < final.usage.output_tokens <= 24


def test_tool_use_loop(messages: anthropic.Anthropic) -> None:
    conversation: Any = [{"role": "user", "content": QUESTION}]
    with messages.messages.stream(
        model="any",
        max_tokens=200,
        messages=conversation,
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as stream:
        asked = stream.get_final_message()
    assert asked.stop_reason == "tool_use"
    (use,) = asked.content
    assert use.type == "tool_use"
    assert use.input["city"] in ("Bern", "Basel")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
    conversation += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    final_answer = messages.messages.create(
        model="any", max_tokens=24, messages=conversation, tools=[TOOL], tool_choice={"type": "none"}
    )
    assert final_answer.content[0].type == "text"


def test_prefilled_message(messages: anthropic.Anthropic) -> None:
    answer = messages.messages.create(
        model="any",
        max_tokens=8,
        messages=[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, three,"}],
        extra_body={"temperature": 0},
    )
    assert answer.content[0].type == "text"
    assert "four" in answer.content[0].text


def test_count_tokens(messages: anthropic.Anthropic) -> None:
    conversation: Any = [{"role": "user", "content": "Say hello."}]
    alone = messages.messages.count_tokens(model="any", messages=conversation)
    with_tools = messages.messages.count_tokens(model="any", messages=conversation, tools=[TOOL])
    assert 10 < alone.input_tokens < with_tools.input_tokens


def test_tokens_are_counted_beyond_the_context(messages: anthropic.Anthropic) -> None:
    """Agents ask before they shorten their conversation."""
    counted = messages.messages.count_tokens(model="any", messages=[{"role": "user", "content": "word " * 9000}])
    assert 9000 < counted.input_tokens < 9100


def test_refused_message(messages: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        messages.messages.create(model="any", max_tokens=8, messages=[{"role": "user", "content": "word " * 9000}])
    assert "context" in str(caught.value)


# ── thoughts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def thinker(tiny_models: dict[str, Path]) -> Iterator[Server]:
    """A model whose template has reasoning. With random weights the reasoning hardly ever ends."""
    with Server("-m", str(tiny_models["caller"]), "-c", "1024") as server:
        yield server


def test_thinking_budget(thinker: Server) -> None:
    for options in ({}, {"temperature": 0}, {"repeat_penalty": 1.1}, {"logprobs": True}, {"tools": [
        {"type": "function", "function": {"name": "clock"}}
    ]}):  # fmt: skip
        answer = thinker.chat(
            "Think.", enable_thinking=True, thinking_budget_tokens=7, max_tokens=20, seed=1, **options
        )
        details = answer["usage"]["completion_tokens_details"]
        assert 7 <= details["reasoning_tokens"] <= 10
        assert answer["choices"][0]["message"]["content"] or answer["choices"][0]["message"].get("tool_calls")


def test_thinking_blocks(thinker: Server) -> None:
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
        asked: Any = {
            "model": "any",
            "max_tokens": 20,
            "messages": [{"role": "user", "content": "Think."}],
            "extra_body": {"seed": 1},
        }
        with client.messages.stream(**asked, thinking={"type": "enabled", "budget_tokens": 7}) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert final.content[0].type == "thinking"
        assert final.content[0].thinking
        hidden = client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 7, "display": "omitted"})
        assert hidden.content[0].type == "thinking"
        assert not hidden.content[0].thinking
        without = client.messages.create(**asked, thinking={"type": "disabled"})
        assert [block.type for block in without.content] == ["text"]


def test_reasoning_items(thinker: Server) -> None:
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as client:
        events = list(
            client.responses.create(
                model="any", input="Think.", reasoning={"effort": "low"}, max_output_tokens=12, stream=True
            )
        )
    last = events[-1]
    assert last.type == "response.incomplete"
    item = last.response.output[0]
    assert item.type == "reasoning"
    assert item.content
    final_answer = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert item.content[0].text == final_answer
