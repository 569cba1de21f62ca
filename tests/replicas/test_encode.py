"""Requests encoded for a remote server: no field may be lost."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.replicas.encode import encode_request, unsupported
from paddock.types import (
    ChatPrompt,
    Constraint,
    GenerateRequest,
    InfillPrompt,
    MixedPrompt,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    Tool,
)

_HELLO = [{"role": "user", "content": "Hello!"}]


def body(request: GenerateRequest, **options: Any) -> dict[str, Any]:
    _, content = encode_request(request, "m", **{"paddock": False, "n_ctx": 512, "deterministic": False, **options})
    content = msgspec.json.decode(msgspec.json.encode(content))  # as sent
    assert isinstance(content, dict)
    return content


@given(
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 100),
        seed=st.none() | st.integers(0, 2**31 - 1),
        ignore_eos=st.booleans(),
        n_probs=st.integers(-1, 5),
        logit_bias=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1.5, float("-inf")])), max_size=3).map(tuple),
        mirostat=st.sampled_from([0, 1, 2]),
        samplers=st.sampled_from([("top_k",), ("min_p", "temperature")]),
    )
)
def test_all_sampling_parameters_are_encoded(params: SamplingParams) -> None:
    for prompt in (TextPrompt("x"), ChatPrompt(_HELLO)):
        content = body(GenerateRequest(prompt, params))
        for name in params.__struct_fields__:
            value = msgspec.to_builtins(getattr(params, name))
            match name:
                case "seed":
                    assert content.get("seed") == value
                case "n_probs" if isinstance(prompt, ChatPrompt):
                    assert (content.get("logprobs", False), content.get("top_logprobs", -1)) == (value >= 0, value)
                case "n_probs":
                    assert content["n_probs"] == (max(1, value) if value >= 0 else 0)
                case "repeat_last_n" | "dry_penalty_last_n":
                    assert content[name] == (512 if value == -1 else value)
                case "logit_bias":
                    biases = [
                        (token, float("-inf") if bias is False else bias) for token, bias in content.get(name, [])
                    ]
                    assert tuple(biases) == params.logit_bias
                case "ignore_eos" | "post_sampling_probs":
                    assert content.get(name, False) == value
                case "adaptive_target" | "adaptive_decay" if "adaptive_p" not in params.samplers:
                    assert name not in content
                case _:
                    assert content[name] == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ("prompt", "path", "content"),
    [
        (TextPrompt("Once"), "/completion", {"prompt": "Once"}),
        (TokenPrompt([1, 2]), "/completion", {"prompt": [1, 2]}),
        (MixedPrompt(["a", 2]), "/completion", {"prompt": ["a", 2]}),
        (
            InfillPrompt("a", "b", [("f.py", "c")]),
            "/infill",
            {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f.py", "text": "c"}]},
        ),
        (ChatPrompt(_HELLO), "/v1/chat/completions", {"messages": _HELLO, "stream_options": {"include_usage": True}}),
    ],
)
def test_routes(prompt: Prompt, path: str, content: dict[str, Any]) -> None:
    route, sent = encode_request(GenerateRequest(prompt), "m", paddock=False, n_ctx=512, deterministic=False)
    assert route == path
    assert sent.items() >= (content | {"model": "m", "stream": True}).items()


def test_chat_with_tools() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        *_HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    prompt = ChatPrompt(messages, tools=(Tool("add", {"type": "object"}, "Adds.", strict=True),), must_call=True)
    sent = body(GenerateRequest(prompt))
    assert sent["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1}'}
    function = {"name": "add", "parameters": {"type": "object"}, "description": "Adds.", "strict": True}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == "required"
    named = body(GenerateRequest(msgspec.structs.replace(prompt, function="add")))
    assert named["tool_choice"] == {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        (ChatPrompt(_HELLO, ending="none"), {"add_generation_prompt": False}),
        (ChatPrompt(_HELLO, ending="continue"), {"continue_final_message": True, "add_generation_prompt": False}),
        (ChatPrompt(_HELLO, thinking=False), {"chat_template_kwargs": {"enable_thinking": False}}),
        (ChatPrompt(_HELLO, thinking_budget=7), {"thinking_budget_tokens": 7}),
        (ChatPrompt(_HELLO, split_reasoning=False), {"reasoning_format": "none"}),
        (ChatPrompt(_HELLO, budget_message="so"), {"reasoning_budget_message": "so"}),
        (ChatPrompt(_HELLO, parse_reply=False), {"skip_chat_parsing": True}),
        (ChatPrompt(_HELLO, template_options={"date": "now"}), {"chat_template_kwargs": {"date": "now"}}),
    ],
)
def test_prompt_endings(prompt: ChatPrompt, sent: dict[str, Any]) -> None:
    assert body(GenerateRequest(prompt)).items() >= sent.items()


def test_generation_options() -> None:
    request = GenerateRequest(
        TextPrompt("x"),
        max_tokens=9,
        stop=("end",),
        n=2,
        cache_prompt=False,
        id_slot=1,
        return_tokens=True,
        timings_per_token=True,
        min_indent=4,
        max_seconds=1.5,
        draft_n_max=3,
        draft_ngram_size_m=12,
        constraint=Constraint("gbnf", 'root ::= "a"', "grammar"),
    )
    assert (
        body(request).items()
        >= {
            "n_predict": 9,
            "n_cmpl": 2,
            "cache_prompt": False,
            "id_slot": 1,
            "return_tokens": True,
            "timings_per_token": True,
            "n_indent": 4,
            "t_max_predict_ms": 1500,
            "speculative.n_max": 3,
            "speculative.ngram_size_m": 12,
            "grammar": 'root ::= "a"',
        }.items()
    )
    assert body(request)["stop"] == ["end"]


def test_deterministic_requests() -> None:
    request = GenerateRequest(TextPrompt("x"), deterministic=True)
    assert body(request, deterministic=True, paddock=True)["deterministic"] is True
    llama_server = body(request, deterministic=True)
    assert "deterministic" not in llama_server and llama_server["cache_prompt"] is False


def test_receipts_are_those_of_paddocks() -> None:
    request = GenerateRequest(ChatPrompt(_HELLO), deterministic=True, receipt=True, n=2)
    assert body(request, deterministic=True, paddock=True)["receipt"] is True
    assert unsupported(request, paddock=True, slots=1, deterministic=True) is None
    for other, paddock in ((request, False), (msgspec.structs.replace(request, prompt=TextPrompt("x")), True)):
        refusal = unsupported(other, paddock=paddock, slots=1, deterministic=True)
        assert refusal is not None and refusal.param == "receipt"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerateRequest(TextPrompt("x"), adapters=((0, 1.0),)), "lora"),
        (GenerateRequest(TextPrompt("x"), prompt_probs=1), "echo"),
        (GenerateRequest(TextPrompt("x"), constraint=Constraint("regex", "a", "regex")), "regex"),
        (GenerateRequest(ChatPrompt(_HELLO, tools=(Tool("f", {}),), must_call=True, function="f")), "tool_choice"),
        (GenerateRequest(ChatPrompt([{"role": "assistant", "content": "x"}])), "add_generation_prompt"),
    ],
)
def test_unsupported_by_llama_server(request_: GenerateRequest, param: str) -> None:
    refusal = unsupported(request_, paddock=False, slots=1, deterministic=False)
    assert refusal is not None and refusal.param == param


def test_determinism_needs_a_single_slot() -> None:
    request = GenerateRequest(TextPrompt("x"))
    assert unsupported(request, paddock=False, slots=1, deterministic=True) is None
    assert unsupported(request, paddock=True, slots=4, deterministic=True) is None
    refusal = unsupported(request, paddock=False, slots=4, deterministic=True)
    assert refusal is not None and "--parallel 1" in refusal.message


def test_the_date_of_a_template() -> None:
    past, today = (
        GenerateRequest(ChatPrompt(_HELLO, date=day.isoformat()))
        for day in (datetime.date(2024, 2, 29), datetime.date.today())
    )
    assert body(past, paddock=True)["template_date"] == "2024-02-29"
    assert body(past)["chat_template_kwargs"] == {"date_string": "29 Feb 2024", "datetime": "Feb 29 2024"}
    own = GenerateRequest(ChatPrompt(_HELLO, date="2024-02-29", template_options={"date_string": "tomorrow"}))
    assert body(own)["chat_template_kwargs"]["date_string"] == "tomorrow"
    prints = "{{ strftime_now('%Y') }}"
    for request, template, param in (
        (past, prints, "template_date"),
        (past, "{{ date_string }}", ""),
        (today, prints, ""),
    ):
        refusal = unsupported(request, paddock=False, slots=1, deterministic=True, template=template)
        assert (refusal.param if refusal is not None else "") == param
        assert unsupported(request, paddock=True, slots=1, deterministic=True, template=template) is None
