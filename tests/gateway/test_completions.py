"""`POST /v1/completions` over HTTP: response shapes with the fake engine, numbers with a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.test_prompt_probabilities import direct
from tests.server import Server, events

URL = "/v1/completions"


def _complete(server: Server, prompt: Any, **options: Any) -> dict[str, Any]:
    response = server.client.post(URL, json={"prompt": prompt, **options})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _texts(body: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


def _stream(server: Server, prompt: Any, **options: Any) -> list[dict[str, Any]]:
    with server.client.stream("POST", URL, json={"prompt": prompt, "stream": True, **options}) as response:
        assert response.status_code == 200
        *data, done = [data for _, data in events(response)]
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


def test_a_completion_has_openais_shape(fake_server: Server) -> None:
    body = _complete(fake_server, "Once upon", max_tokens=5, model="any", user="someone")
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 1_600_000_000
    assert body.pop("system_fingerprint") == "fp_fake"
    (choice,) = body.pop("choices")
    assert len(choice.pop("text")) == 5
    assert choice == {"index": 0, "logprobs": None, "finish_reason": "length"}
    usage = body.pop("usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 5, 15)
    timings = body.pop("timings")
    assert (timings["cache_n"] + timings["prompt_n"], timings["predicted_n"]) == (10, 5)
    assert body == {"object": "text_completion", "model": "any"}


def test_every_form_of_a_prompt(fake_server: Server) -> None:
    text, other = "Once upon", "There was"
    tokens, others = [256, *text.encode()], [256, *other.encode()]
    (one,) = _texts(_complete(fake_server, text, max_tokens=8))
    (two,) = _texts(_complete(fake_server, other, max_tokens=8))
    assert one != two
    assert _texts(_complete(fake_server, tokens, max_tokens=8)) == [one]
    assert _texts(_complete(fake_server, [text, other], max_tokens=8)) == [one, two]
    assert _texts(_complete(fake_server, [tokens, others], max_tokens=8)) == [one, two]
    assert _texts(_complete(fake_server, [256, text], max_tokens=8)) == [one]
    body = _complete(fake_server, [text, other], n=2, max_tokens=8)
    assert _texts(body) == [one, one, two, two]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 20, "each prompt counts once"
    assert body["usage"]["completion_tokens"] == 32


def test_streamed_prompts_and_answers_have_an_index(fake_server: Server) -> None:
    prompts = ["Once upon", "There was"]
    chunks = _stream(fake_server, prompts, n=2, max_tokens=8, stream_options={"include_usage": True})
    texts = ["", "", "", ""]
    for chunk in chunks[:-1]:
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    whole = _complete(fake_server, prompts, n=2, max_tokens=8)
    assert texts == _texts(whole)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert all("usage" not in chunk for chunk in _stream(fake_server, "x", max_tokens=2))


def test_echo_logprobs_and_offsets(fake_server: Server) -> None:
    plain = _complete(fake_server, "Grüße", max_tokens=3)["choices"][0]
    body = _complete(fake_server, "Grüße", max_tokens=3, echo=True, logprobs=2)
    (choice,) = body["choices"]
    assert choice["text"] == "Grüße" + plain["text"]
    logprobs = choice["logprobs"]
    letters = ["G", "r", r"bytes:\xc3", r"bytes:\xbc", r"bytes:\xc3", r"bytes:\x9f", "e"]
    assert logprobs["tokens"] == ["<s>", *letters, *plain["text"]]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 2, 3, 3, 4, 5, 6, 7]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    for token, logprob, top in zip(
        logprobs["tokens"][1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert top[token] == logprob
        assert len(top) == 2
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "all of it was computed, to be judged"
    (silent,) = _complete(fake_server, "Grüße", max_tokens=3, logprobs=0)["choices"]
    assert silent["logprobs"]["tokens"] == list(plain["text"])
    assert silent["logprobs"]["text_offset"] == [0, 1, 2]
    (only,) = _complete(fake_server, "Grüße", max_tokens=0, echo=True)["choices"]
    assert (only["text"], only["finish_reason"], only["logprobs"]) == ("Grüße", "length", None)


def test_streamed_echo_equals_the_whole_answer(fake_server: Server) -> None:
    options: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 6, "n": 2, "stop": ["zq"]}
    whole = _complete(fake_server, ["abc", "de"], **options)
    lists: list[dict[str, list[Any]]] = [{} for _ in range(4)]
    texts = [""] * 4
    for chunk in _stream(fake_server, ["abc", "de"], **options):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            lists[choice["index"]].setdefault(name, []).extend(values)
    assert texts == _texts(whole)
    assert lists == [choice["logprobs"] for choice in whole["choices"]]


def test_stop_and_seed(fake_server: Server) -> None:
    (text,) = _texts(_complete(fake_server, "Once upon", max_tokens=20))
    (choice,) = _complete(fake_server, "Once upon", max_tokens=20, stop=text[4:6])["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[:4], "stop")
    assert _texts(_complete(fake_server, "Once upon", max_tokens=20, seed=3)) == [text]


@pytest.fixture(scope="module")
def tiny_server(tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("-m", str(tiny_models["infill"]), "-c", "2048") as server:
        yield server


def test_best_of_returns_the_likeliest_answers(tiny_server: Server) -> None:
    def mean(choice: dict[str, Any]) -> float:
        logprobs: list[float] = choice["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    options = {"max_tokens": 6, "temperature": 2.0, "seed": 11, "logprobs": 0, "top_k": 0, "min_p": 0}
    everything = _complete(tiny_server, "the horse", n=6, **options)
    best = _complete(tiny_server, "the horse", n=2, best_of=6, **options)
    expected = sorted(everything["choices"], key=mean, reverse=True)[:2]
    assert _texts(best) == [choice["text"] for choice in expected]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == everything["usage"]["completion_tokens"] == 36
    quiet = _complete(tiny_server, "the horse", n=2, best_of=6, **{**options, "logprobs": None})
    assert _texts(quiet) == _texts(best)
    assert [choice["logprobs"] for choice in quiet["choices"]] == [None, None]


def test_log_likelihoods_are_those_of_libllama(tiny_server: Server, tiny_models: dict[str, Path]) -> None:
    """As lm-evaluation-harness requests them: several token arrays, each with context and continuation."""
    context, continuations = [1, *range(262, 320)], [[270, 281, 290], [265, 265], [300]]
    prompts = [context + continuation for continuation in continuations]
    body = _complete(tiny_server, prompts, echo=True, logprobs=1, max_tokens=1, temperature=0)
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        expected = direct(tiny_models["infill"], prompt)
        judged = choice["logprobs"]["token_logprobs"][len(context) : -1]
        assert len(judged) == len(prompt) - len(context)
        places = range(len(context), len(prompt))
        assert judged == pytest.approx([expected[at - 1][prompt[at]] for at in places], abs=0.05)
        greedy = [
            logprob == max(top.values())
            for logprob, top in zip(judged, choice["logprobs"]["top_logprobs"][len(context) : -1], strict=True)
        ]
        assert greedy == [prompt[at] == expected[at - 1].argmax() for at in places]


def test_suffix_uses_the_fill_in_the_middle_format(tiny_server: Server) -> None:
    infill = _complete(tiny_server, "the horse", suffix="the gate", max_tokens=4, temperature=0)
    marked = "<fim_prefix>the horse<fim_suffix>the gate<fim_middle>"
    written = _complete(tiny_server, marked, max_tokens=4, temperature=0)
    assert _texts(infill) == _texts(written)
    assert infill["usage"]["prompt_tokens"] == written["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [[1, [2]]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": ["a", [1, 260]]}, "prompt"),
        ({"prompt": ["x"] * 300}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["YQ=="]}}, "prompt.prompt_string"),
        ({"prompt": {"prompt_string": "x<__media__>y", "multimodal_data": ["YQ=="]}}, "prompt.multimodal_data[0]"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "b"}, "suffix"),
        ({"suffix": "b", "prompt": [1]}, "suffix"),
        ({"suffix": "b", "echo": True}, "echo"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"regex": "("}, "regex"),
        ({"regex": "a", "json_schema": {}}, "regex"),
    ],
)
def test_invalid_combinations_are_refused_by_name(
    fake_server: Server, options: dict[str, Any], param: str | None
) -> None:
    response = fake_server.client.post(URL, json={"prompt": "x", "max_tokens": 1, **options})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_one_prompt_too_long_fails_the_request(fake_server: Server) -> None:
    response = fake_server.client.post(URL, json={"prompt": ["x", "x" * 9000], "max_tokens": 1})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert fake_server.client.get("/health").json()["slots_available"] >= 4


# ── the openai package ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def client(fake_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fake_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_openai_package_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="any", prompt=["a b", "c d"], max_tokens=6, echo=True, logprobs=1, n=2)
    assert [choice.text[:3] for choice in answer.choices] == ["a b", "a b", "c d", "c d"]
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["<s>", *answer.choices[0].text]
    assert answer.usage is not None and answer.usage.completion_tokens == 24


def test_the_openai_package_streams(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="any", prompt="a b", max_tokens=6).choices[0].text
    stream = client.completions.create(model="any", prompt="a b", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole


def test_the_openai_package_raises_the_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no infill tokens"):
        client.completions.create(model="any", prompt="a", suffix="b")
