"""`POST /completion` over HTTP, field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, events

PARTS = {
    "total_ms", "load_ms", "queue_ms", "media_ms", "restore_ms", "prefill_ms", "decode_ms", "others_ms", "overhead_ms",
}  # fmt: skip
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
    "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip


def _complete(server: Server, prompt: Any, **options: Any) -> Any:
    response = server.client.post("/completion", json={"prompt": prompt, **options})
    assert response.status_code == 200, response.text
    return response.json()


def _stream(server: Server, prompt: Any, **options: Any) -> list[dict[str, Any]]:
    with server.client.stream("POST", "/completion", json={"prompt": prompt, "stream": True, **options}) as response:
        assert response.status_code == 200
        return [json.loads(data) for _, data in events(response)]


@pytest.fixture(scope="module")
def tiny_server(tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("-m", str(tiny_models["llama"]), "-c", "2048", "-np", "2") as server:
        yield server


def test_an_answer_has_every_field_that_llama_server_documents(fake_server: Server) -> None:
    prompt = "^ as no other text begins: what is there?"
    body = _complete(fake_server, prompt, n_predict=6, seed=5, stop=["zzz"])
    assert set(body) == {
        "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
        "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached",
        "timings",
    }  # fmt: skip
    assert (body["index"], body["stop"], body["model"], body["truncated"]) == (0, True, "fake", False)
    assert len(body["content"]) == 6
    assert body["tokens"] == []
    assert body["tokens_predicted"] == 6
    assert body["tokens_evaluated"] == len(prompt) + 1
    assert body["prompt"] == "<s>" + prompt
    assert (body["stop_type"], body["stopping_word"], body["has_new_line"]) == ("limit", "", False)
    settings = body["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["stop"]) == (6, 5, ["zzz"])
    assert (settings["temperature"], settings["top_k"], settings["n_ctx"]) == (0.8, 40, 8192)
    timings = body["timings"]
    assert set(timings) == TIMINGS | PARTS
    assert timings["cache_n"] <= 1, "nothing but the beginning, which every text shares"
    assert body["tokens_cached"] == len(prompt) + 6, "the last token is never computed"
    assert (timings["cache_n"] + timings["prompt_n"], timings["predicted_n"]) == (len(prompt) + 1, 6)
    assert timings["prompt_ms"] > 0 and timings["predicted_ms"] > 0
    assert timings["prompt_per_token_ms"] * timings["prompt_per_second"] == pytest.approx(1000)
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 5), (
        "the first comes with the prompt"
    )
    assert _complete(fake_server, prompt, n_predict=6)["timings"]["cache_n"] == len(prompt)
    assert _complete(fake_server, prompt, n_predict=6, cache_prompt=False)["timings"]["cache_n"] == 0


def test_completions_is_an_alias(fake_server: Server) -> None:
    body = fake_server.client.post("/completions", json={"prompt": "x", "max_tokens": 3}).json()
    assert body["tokens_predicted"] == 3


def test_every_form_of_a_prompt(fake_server: Server) -> None:
    def contents(prompt: Any) -> Any:
        body = _complete(fake_server, prompt, n_predict=4)
        return [item["content"] for item in body] if isinstance(body, list) else body["content"]

    text = contents("one two")
    tokens = [256, *b"one two"]
    assert contents(tokens) == text
    assert contents([256, "one ", *b"two"]) == text
    assert contents(["one ", *b"two"]) == text, "text at the beginning begins a text"
    assert contents({"prompt_string": "one two"}) == text
    assert contents(["one two", tokens, [256, "one two"], {"prompt_string": "one two"}]) == [text] * 4
    assert contents(["one two"]) == text
    many = _complete(fake_server, ["one two", "three"], n_predict=4, n_cmpl=2)
    assert [item["index"] for item in many] == [0, 1, 2, 3]
    assert [item["prompt"] for item in many] == ["<s>one two", "<s>one two", "<s>three", "<s>three"]


def test_stop_type(fake_server: Server) -> None:
    prompt = "how does this one stop"
    ended = _complete(fake_server, prompt)
    assert (ended["stop_type"], ended["stopping_word"]) == ("eos", "")
    word = ended["content"][5:7]
    stopped = _complete(fake_server, prompt, stop=["zzzz", word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == ended["content"][:5]
    nothing = _complete(fake_server, prompt, n_predict=0)
    assert (nothing["content"], nothing["stop_type"], nothing["tokens_predicted"]) == ("", "limit", 0)


def test_answer_at_the_end_of_the_context_is_truncated(tiny_server: Server) -> None:
    body = _complete(tiny_server, "a " * 400, ignore_eos=True)
    assert (body["stop_type"], body["truncated"]) == ("limit", True)
    assert body["tokens_evaluated"] + body["tokens_predicted"] == body["generation_settings"]["n_ctx"] == 1024


def test_tokens_and_probabilities(tiny_server: Server) -> None:
    body = _complete(tiny_server, "the horse", n_predict=3, n_probs=2, return_tokens=True, temperature=0, id_slot=1)
    assert body["id_slot"] == 1
    assert len(body["tokens"]) == 3
    for token, item in zip(body["tokens"], body["completion_probabilities"], strict=True):
        assert set(item) == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert item["id"] == token == item["top_logprobs"][0]["id"], "greedy"
        assert bytes(item["bytes"]).decode() == item["token"]
        assert len(item["top_logprobs"]) == 2
        assert 0 > item["top_logprobs"][0]["logprob"] >= item["top_logprobs"][1]["logprob"]
    after = _complete(tiny_server, "the horse", n_predict=1, n_probs=3, post_sampling_probs=True, top_k=2, min_p=0)
    (item,) = after["completion_probabilities"]
    assert set(item) == {"id", "token", "bytes", "prob", "top_probs"}
    assert len(item["top_probs"]) == 2, "the samplers left no more"
    assert math.fsum(top["prob"] for top in item["top_probs"]) == pytest.approx(1)
    assert "completion_probabilities" not in _complete(tiny_server, "the horse", n_predict=1, n_probs=0)


def test_stream_ends_with_a_final_event(fake_server: Server) -> None:
    prompt = "streamed natively"
    whole = _complete(fake_server, prompt, n_predict=5, return_tokens=True)
    *parts, last = _stream(fake_server, prompt, n_predict=5)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [part["tokens_predicted"] for part in parts] == [1, 2, 3, 4, 5]
    for part in parts:
        assert set(part) == {
            "index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"
        }  # fmt: skip
        assert part["stop"] is False
    assert (last["content"], last["tokens"], last["stop"], last["stop_type"]) == ("", [], True, "limit")
    assert set(last) == set(whole)


def test_timings_and_probabilities_in_every_event(tiny_server: Server) -> None:
    *parts, last = _stream(tiny_server, "the gate", n_predict=4, n_probs=1, timings_per_token=True)
    assert [part["timings"]["predicted_n"] for part in parts] == [1, 2, 3, 4]
    assert all(set(part["timings"]) == TIMINGS for part in parts)
    assert all(len(part["completion_probabilities"]) == 1 for part in parts)
    assert "completion_probabilities" not in last


def test_response_fields(fake_server: Server) -> None:
    wanted = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing", "content/nothing"]
    body = _complete(fake_server, "pick", n_predict=2, response_fields=wanted)
    assert set(body) == {"content", "generation_settings/n_predict", "timings/predicted_n"}
    assert (body["generation_settings/n_predict"], body["timings/predicted_n"]) == (2, 2)


def test_grammars_and_schemas(tiny_server: Server) -> None:
    assert _complete(tiny_server, "x", grammar='root ::= "yes" | "no"')["content"] in ("yes", "no")
    lark = '%llguidance {}\nstart: "left" | "right"'
    assert _complete(tiny_server, "x", grammar=lark)["content"] in ("left", "right")
    assert len(_complete(tiny_server, "x", regex="[ab]{5}", ignore_eos=True)["content"]) == 5
    body = _complete(tiny_server, "x", json_schema={"enum": [1, "two", None]})
    assert json.loads(body["content"]) in (1, "two", None)
    assert body["stop_type"] == "eos"
    cut = _complete(tiny_server, "x", json_schema={"const": "a long string"}, n_predict=3)
    assert cut["stop_type"] == "limit"
    several = _complete(tiny_server, "x", regex="a+b", n_cmpl=4, n_predict=200, temperature=1.5)
    assert all(set(item["content"]) == {"a", "b"} for item in several if item["stop_type"] == "eos")


def test_fields_without_effect_are_accepted(fake_server: Server) -> None:
    neutral = {"n_keep": 5, "n_discard": 0, "n_cache_reuse": 0, "n_indent": 0, "return_progress": False, "lora": []}
    assert (
        _complete(fake_server, "x", n_predict=2, sse_ping_interval=-1, grammar="", **neutral)["tokens_predicted"] == 2
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_indent", -4),
        ("return_progress", 1),
        ("messages", []),
        ("guided_json", {}),
        ("lora", [{"id": 0, "scale": 1}]),
        ("sse_ping_interval", -2),
        ("n_predict", -2),
        ("n_probs", -1),
        ("n_cmpl", 0),
        ("id_slot", 999),
        ("t_max_predict_ms", -5),
        ("response_fields", "content"),
        ("grammar", "root = x"),
        ("json_schema", {"type": "array", "uniqueItems": True}),
        ("json_schema", 3),
        ("samplers", ["luck"]),
        ("prompt", None),
        ("prompt", [1.5]),
    ],
)
def test_unsupported_fields_are_refused_by_name(fake_server: Server, field: str, value: Any) -> None:
    response = fake_server.client.post("/completion", json={"prompt": "x", "n_predict": 1, field: value})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(field)


def test_unsatisfiable_constraint_fails_only_its_request(tiny_server: Server) -> None:
    """logit_bias forbids every token, which the grammar compiler cannot know."""
    never = [[token, False] for token in range(340)]
    for options in ({}, {"temperature": 0}, {"n_probs": 1}):
        body = {"prompt": "x", "n_predict": 3, "regex": "ab", "logit_bias": never, "n_cmpl": 2, **options}
        response = tiny_server.client.post("/completion", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["code"] == "constraint_failed"
    assert _complete(tiny_server, "x", n_predict=3, ignore_eos=True)["tokens_predicted"] == 3
