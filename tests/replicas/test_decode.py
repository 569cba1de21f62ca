"""Event streams of real servers, decoded to deltas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paddock.replicas.decode import ChatReader, CompletionReader, InvalidEvent, UpstreamError
from paddock.types import CallDelta, GenerateRequest, PromptProgress, SamplingParams, TextPrompt, Usage
from paddock.wire.messages import Delta


def _request(**options: Any) -> GenerateRequest:
    return GenerateRequest(TextPrompt("hello"), **options)


def chat(*chunks: Any, **options: Any) -> list[Delta]:
    reader = ChatReader(_request(**options))
    return [delta for chunk in chunks for delta in reader.feed(json.dumps(chunk).encode())]


def choice(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more}


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}, **more}


def test_chat() -> None:
    deltas = chat(
        choice({"role": "assistant", "content": None}),
        choice({"reasoning_content": "Hm."}),
        choice({"content": "Hel"}),
        choice({"content": "lo"}),
        choice({}, "stop"),
        usage(5, 3, timings={"prompt_ms": 10, "predicted_ms": 20.0, "cache_n": 2}),
    )
    assert [(delta.text, delta.reasoning) for delta in deltas] == [("", "Hm."), ("Hel", ""), ("lo", ""), ("", "")]
    assert [delta.finish for delta in deltas] == [None, None, None, "stop"]
    assert deltas[-1].usage == Usage(5, 3)
    assert deltas[-1].timings is not None and deltas[-1].timings.generation == 0.02


def test_tool_calls_and_a_withdrawn_one() -> None:
    begun = choice(
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}
    )
    more = choice({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]})
    deltas = chat(begun, more, choice({}, "tool_calls"), usage(1, 2))
    assert [delta.calls for delta in deltas] == [[CallDelta(0, "c", "f", "{")], [CallDelta(0, arguments="}")], None]
    deltas = chat(begun, choice({"content": "{"}), choice({"malformed_tool_call": True}, "stop"), usage(1, 2))
    assert deltas[-1].calls == [CallDelta(0, withdrawn=True)]
    assert deltas[-1].malformed


@pytest.mark.parametrize("each", [True, False])
def test_usage_of_several_completions(each: bool) -> None:
    contents = [choice({"content": "a"}), choice({"content": "b"}, index=1), choice({"content": "c"}, index=1)]
    ends = [choice({}, "stop"), usage(4, 1), choice({}, "length", index=1), usage(4, 2)]
    if not each:
        ends = [choice({}, "stop"), choice({}, "length", index=1), usage(4, 3)]
    ended = {delta.index: delta for delta in chat(*contents, *ends) if delta.finish is not None}
    assert {index: delta.usage for index, delta in ended.items()} == {0: Usage(4, 1), 1: Usage(4, 2)}
    assert [ended[0].finish, ended[1].finish] == ["stop", "length"]


def test_logprobs() -> None:
    one = {"token": "é", "bytes": [195, 169], "logprob": -0.5, "top_logprobs": [{"token": "e", "logprob": -1.0}]}
    chunk = choice({"content": "é"})
    chunk["choices"][0]["logprobs"] = {"content": [one]}
    (delta,) = chat(chunk, sampling=SamplingParams(n_probs=1))
    assert delta.logprobs is not None
    assert (delta.logprobs[0].piece, delta.logprobs[0].logprob) == ("é".encode(), -0.5)
    assert delta.logprobs[0].top == [(-1, b"e", -1.0)]


def test_prompt_progress() -> None:
    chunk = choice({}, prompt_progress={"total": 9, "cache": 1, "processed": 4, "time_ms": 500})
    (delta,) = chat(chunk, return_progress=True)
    assert delta.progress == PromptProgress(9, 1, 4, 0.5)
    reader = ChatReader(_request())
    assert reader.feed(json.dumps(chunk).encode()) == []
    assert reader.prompt_tokens == 9


def test_completion() -> None:
    reader = CompletionReader(_request(return_tokens=True))
    part = {"index": 0, "content": "Hi", "tokens": [7], "stop": False, "id_slot": 1, "tokens_evaluated": 3}
    (delta,) = reader.feed(json.dumps(part).encode())
    assert (delta.text, delta.tokens, delta.slot, delta.finish) == ("Hi", [7], 1, None)
    last = {
        "index": 0,
        "content": "",
        "tokens": [],
        "stop": True,
        "tokens_evaluated": 3,
        "tokens_predicted": 1,
        "stop_type": "word",
        "stopping_word": "x",
        "prompt": "<s>Once",
        "timings": {"cache_n": 2},
    }
    (delta,) = reader.feed(json.dumps(last).encode())
    assert (delta.finish, delta.stop_string, delta.usage) == ("stop", "x", Usage(3, 1, 2))
    assert (reader.prompt, reader.prompt_tokens) == ("<s>Once", 3)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"choices": 3}', b'"\xff"'])
def test_invalid_events(data: bytes) -> None:
    with pytest.raises(InvalidEvent):
        ChatReader(_request()).feed(data)


def test_error_event() -> None:
    with pytest.raises(UpstreamError) as raised:
        chat({"error": {"code": 500, "message": "no"}})
    assert raised.value.error == {"code": 500, "message": "no"}
