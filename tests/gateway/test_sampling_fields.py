"""llama-server's spellings of request fields: biases by text, samplers by letter, and the places of a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.generation.sampling_fields import SamplingFields
from paddock.types import SamplerName, SamplingParams
from tests.server import Server, chat_body
from tests.tiers import full

_NEVER = float("-inf")


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[Server]:
    with Server("-m", str(demo_model), "-c", "512", "--temp", "0", "-n", "12") as server:
        yield server


def _completion(server: Server, **fields: Any) -> dict[str, Any]:
    response = server.client.post("/completion", json={"prompt": "Once upon a time", **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


# ── logit_bias ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.dictionaries(st.integers(0, 2**31 - 1) | st.text(min_size=1, max_size=9), st.sampled_from([1.5, -3, False])))
def test_every_shape_of_logit_bias_means_the_same(biases: dict[int | str, float | bool]) -> None:
    expected = tuple((token, _NEVER if bias is False else bias) for token, bias in biases.items())
    pairs = SamplingFields.model_validate({"logit_bias": [list(pair) for pair in biases.items()]})
    assert pairs.sampling().logit_bias == expected
    if not any(isinstance(token, str) and token.strip().lstrip("+-").isdecimal() for token in biases):
        keys = SamplingFields.model_validate({"logit_bias": {str(token): bias for token, bias in biases.items()}})
        assert keys.sampling().logit_bias == expected


@full
def test_a_text_stands_for_all_its_tokens(server: Server) -> None:
    text = " princess and a dragon"
    question = {"content": text, "parse_special": False}
    tokens = server.client.post("/tokenize", json=question).json()["tokens"]
    assert len(set(tokens)) > 1
    by_id = _completion(server, logit_bias=[[token, 100] for token in tokens])
    assert by_id["content"] != _completion(server)["content"]
    assert _completion(server, logit_bias=[[text, 100]])["content"] == by_id["content"]
    assert _completion(server, logit_bias={text: 100})["content"] == by_id["content"]


def test_false_forbids_a_text(server: Server) -> None:
    free = _completion(server)["content"]
    words = [word for word in free.split() if word.isalpha()]
    forbidden = _completion(server, logit_bias={f" {words[0]}": False})["content"]
    assert words[0] not in forbidden.split()


# ── samplers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.sampled_from([*SamplingParams().samplers, "adaptive_p"]), max_size=12), st.data())
def test_samplers_have_names_spellings_and_letters(names: list[SamplerName], data: st.DataObject) -> None:
    letters = dict(zip((*SamplingParams().samplers, "adaptive_p"), "edskypmxta", strict=True))
    spelled = [
        data.draw(st.sampled_from([name, name.replace("_", "-"), name.replace("_", ""), name.upper()]))
        for name in names
    ]
    for given_names in (spelled, "".join(letters[name] for name in names)):
        assert SamplingFields(samplers=given_names).sampling().samplers == tuple(names)  # type: ignore[arg-type]


def test_adaptive_p_changes_answers_and_repeats_for_a_seed(server: Server) -> None:
    fields = {"temperature": 1, "seed": 5, "samplers": "kpta", "adaptive_target": 0.05}
    first = _completion(server, **fields)
    assert first["generation_settings"]["samplers"] == ["top_k", "top_p", "temperature", "adaptive_p"]
    assert first["content"] == _completion(server, **fields)["content"]
    assert first["content"] != _completion(server, **fields | {"samplers": "kpt"})["content"]
    assert first["content"] != _completion(server, **fields | {"adaptive_target": 0.9})["content"]


# ── response_format ──────────────────────────────────────────────────────────────────────────────────────────────────

_SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": _SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": _SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
        {"response_format": {"type": "json_object"}, "json_schema": _SCHEMA},
        {"response_format": {"type": "text"}, "json_schema": _SCHEMA},
        {"json_schema": _SCHEMA},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_schema_is_enforced_wherever_it_is(server: Server, path: str, fields: dict[str, Any]) -> None:
    body = chat_body("hi") if "chat" in path else {"prompt": "hi"}
    choice = server.client.post(path, json={**body, **fields, "max_tokens": 60}).json()["choices"][0]
    assert json.loads(choice["message"]["content"] if "chat" in path else choice["text"]) == {"a": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "text", "schema": _SCHEMA}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": _SCHEMA}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": _SCHEMA}, "json_schema": _SCHEMA}, "response_format"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "response_format"),
        ({"json_schema": _SCHEMA, "grammar": 'root ::= "a"'}, "json_schema"),
    ],
)
def test_contradictions_are_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    response = server.client.post("/v1/chat/completions", json=chat_body("hi", **fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
