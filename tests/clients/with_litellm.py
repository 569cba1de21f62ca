"""litellm: whole and streamed, tools, schemas, vectors, and our refusals as its own exceptions."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import litellm
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Basel"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Choice(BaseModel):
    colour: Literal["red", "green"]


def answers(server: dict[str, Any]) -> None:
    answer = litellm.completion(messages=[{"role": "user", "content": "Say hello."}], temperature=0, **server)
    assert "hello" in answer.choices[0].message.content.lower()
    assert answer.usage.prompt_tokens > 5
    older = litellm.text_completion(prompt="A horse is", **(server | {"model": f"text-completion-{server['model']}"}))
    assert older.choices[0].text


def streams(server: dict[str, Any]) -> None:
    chunks = list(litellm.completion(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **server))
    assert len(chunks) > 5
    whole = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert whole.choices[0].message.content
    assert 0 < whole.usage.completion_tokens <= 32


async def waits(server: dict[str, Any]) -> None:
    two = await asyncio.gather(*(litellm.acompletion(messages=QUESTION, **server) for _ in range(2)))
    assert all(answer.choices[0].message.content for answer in two)
    parts = [part async for part in await litellm.acompletion(messages=QUESTION, stream=True, **server)]
    assert len(parts) > 5


def calls_tools(server: dict[str, Any]) -> None:
    options = {**server, "tools": [WEATHER], "parallel_tool_calls": False, "max_tokens": 200}
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        message = litellm.completion(messages=QUESTION, tool_choice=choice, **options).choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Bern", "Basel")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    after = litellm.completion(messages=[*QUESTION, message.model_dump(), result], **options)
    assert after.choices[0].message.content or after.choices[0].message.tool_calls


def parses(server: dict[str, Any]) -> None:
    answer = litellm.completion(messages=QUESTION, response_format=Choice, **server)
    assert Choice.model_validate_json(answer.choices[0].message.content).colour in ("red", "green")


def embeds(server: dict[str, Any]) -> None:
    for encoding in ("float", "base64"):
        answer = litellm.embedding(input=["a", "b"], encoding_format=encoding, **server)
        assert len(answer.data) == 2
    assert answer.usage.prompt_tokens > 1


def refuses(server: dict[str, Any]) -> None:
    try:
        litellm.completion(messages=[{"role": "user", "content": "word " * 9000}], **server)
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt that does not fit was answered")


if __name__ == "__main__":
    generating, embedding = sys.argv[1:]
    server = {
        "model": "openai/any",
        "api_base": generating,
        "api_key": "none",
        "max_tokens": 32,
        "max_retries": 0,
        "seed": 1,
        "extra_body": {"deterministic": True},
    }
    answers(server)
    streams(server)
    asyncio.run(waits(server))
    calls_tools(server)
    parses(server)
    embeds({"model": "openai/any", "api_base": embedding, "api_key": "none"})
    refuses(server)
