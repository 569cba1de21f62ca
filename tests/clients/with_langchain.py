"""LangChain's ChatOpenAI: whole and streamed, with tools that must be called, and into models of pydantic."""

from __future__ import annotations

import sys
from typing import Literal

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field


class Horse(BaseModel):
    """A horse."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["Bella", "Max"]
    age: int = Field(ge=0, le=40)


def get_weather(city: Literal["Bern", "Basel"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def answers(chat: ChatOpenAI) -> None:
    answer = chat.invoke("Say hello.", temperature=0)
    assert "hello" in answer.content.lower()
    assert answer.usage_metadata["input_tokens"] > 5
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    two = chat.batch(["Say hello.", "Say goodbye."])
    assert all(answer.content for answer in two)


def streams(chat: ChatOpenAI) -> None:
    whole = AIMessageChunk("")
    chunks = list(chat.stream("Count to five."))
    for chunk in chunks:
        whole += chunk
    assert len(chunks) > 5
    assert whole.content
    assert 0 < whole.usage_metadata["output_tokens"] <= 32


def calls_tools(chat: ChatOpenAI) -> None:
    question = HumanMessage("How is the weather?")
    for choice in ("required", "get_weather"):
        asked = chat.bind_tools([get_weather, Horse], tool_choice=choice, parallel_tool_calls=False, strict=True)
        answer = asked.invoke([question], max_tokens=200)
        (call,) = answer.tool_calls
        assert not answer.invalid_tool_calls
        if choice == "get_weather":
            assert call["name"] == "get_weather"
            assert call["args"]["city"] in ("Bern", "Basel")
            result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
            assert chat.invoke([question, answer, result]).content
    whole = AIMessageChunk("")
    for chunk in asked.stream([question], max_tokens=200):
        whole += chunk
    assert whole.tool_calls[0]["args"]["city"] in ("Bern", "Basel")


def parses(chat: ChatOpenAI) -> None:
    for method in ("json_schema", "function_calling"):
        horse = chat.with_structured_output(Horse, method=method).invoke("Name a horse.", max_tokens=100)
        assert isinstance(horse, Horse), method
        assert 0 <= horse.age <= 40
    plain = chat.with_structured_output(Horse.model_json_schema(), method="json_schema", strict=True)
    assert plain.invoke("Name a horse.", max_tokens=100)["name"] in ("Bella", "Max")


def embeds(url: str) -> None:
    # It would otherwise cut texts into the tokens of a model of OpenAI's.
    embeddings = OpenAIEmbeddings(base_url=url, api_key="none", model="any", check_embedding_ctx_length=False)
    first, second = embeddings.embed_documents(["a", "b"])
    assert len(first) == len(second) > 8
    assert first != second


def refuses(chat: ChatOpenAI) -> None:
    try:
        chat.invoke("word " * 9000)
    except ContextOverflowError:
        return
    raise AssertionError("a prompt that does not fit was answered")


if __name__ == "__main__":
    generating, embedding = sys.argv[1:]
    chat = ChatOpenAI(
        base_url=generating,
        api_key="none",
        model="any",
        max_tokens=32,
        max_retries=0,
        stream_usage=True,
        seed=1,
        extra_body={"deterministic": True},
    )
    answers(chat)
    streams(chat)
    calls_tools(chat)
    parses(chat)
    embeds(embedding)
    refuses(chat)
