"""Unknown fields: one that changes the answer is honoured or refused, any other is ignored and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.dialects.openai.requests import LABELS
from paddock.gateway.generation.fields import GenerationFields
from tests.server import Server, chat_body
from tests.tiers import examples

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NO_EFFECT = GenerationFields.without_effect
HEADER = "x-paddock-ignored-fields"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat_body("say: x"),
    COMPLETIONS: {"prompt": "x", "max_tokens": 1},
    "/completion": {"prompt": "x", "n_predict": 1},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [97]},
    "/apply-template": chat_body("x"),
}


def _post(server: Server, path: str, **more: Any) -> httpx.Response:
    return server.client.post(path, json={**BODIES[path], **more})


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_ignored_and_named(fake_server: Server, path: str) -> None:
    assert HEADER not in _post(fake_server, path).headers
    response = _post(fake_server, path, from_the_future=[1, {"a": 2}], temprature=1)
    assert response.status_code == 200, response.text
    assert sorted(response.headers[HEADER].split(", ")) == ["from_the_future", "temprature"]


def test_unknown_fields_inside_others_are_named_by_their_path(fake_server: Server) -> None:
    messages = [
        {"role": "user", "content": "x", "mood": "glad"},
        {"role": "user", "content": [{"type": "text", "text": "y", "z": 1}]},
    ]
    response = fake_server.client.post(
        CHAT, json={"messages": messages, "stream": True, "stream_options": {"include_usage": True, "more": 1}}
    )
    assert response.status_code == 200, response.text
    assert set(response.headers[HEADER].split(", ")) == {
        "messages[0].mood", "messages[1].content[0].z", "stream_options.more"
    }  # fmt: skip
    assert '"usage":{' in response.text


def test_an_ignored_field_changes_nothing(fake_server: Server) -> None:
    plain = _post(fake_server, CHAT, messages=[{"role": "user", "content": "y", "name": "n"}], seed=1).json()
    other = _post(fake_server, CHAT, messages=[{"role": "user", "content": "y", "name": "n", "zz": 1}], seed=1).json()
    assert plain["choices"] == other["choices"]


def test_invalid_fields_are_reported_before_unknown_ones(fake_server: Server) -> None:
    response = _post(fake_server, CHAT, aaa=1, temperature="hot")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")
    response = _post(fake_server, CHAT, aaa=1, top_logprobs=3)  # detected after all fields are read
    assert (response.status_code, "logprobs: true" in response.json()["error"]["message"]) == (400, True)


@examples(100)
@given(st.dictionaries(st.text(max_size=120), st.integers(), min_size=1, max_size=40))
def test_any_name_fits_the_header(fake_server: Server, unknown: dict[str, int]) -> None:
    response = fake_server.client.post("/tokenize", json={**unknown, "content": "x"})
    assert response.status_code == 200 or response.json()["error"]["param"] in unknown, response.text
    assert len(response.headers.get(HEADER, "")) < 20_000


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "prompt", "x"),
        (CHAT, "n_predict", 5),
        (CHAT, "guided_json", {"type": "object"}),
        (CHAT, "min_tokens", 5),
        (CHAT, "web_search_options", {}),
        (COMPLETIONS, "messages", []),
        (COMPLETIONS, "top_logprobs", 2),
        (COMPLETIONS, "stop_token_ids", [1]),
        ("/completion", "response_format", {"type": "json_object"}),
        ("/completion", "best_of", 2),
        ("/completion", "options", {"num_ctx": 5}),
    ],
)
def test_unsupported_fields_are_refused(fake_server: Server, path: str, field: str, value: Any) -> None:
    response = _post(fake_server, path, **{field: value})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


def test_null_is_accepted(fake_server: Server) -> None:
    response = _post(fake_server, CHAT, prompt=None, n_predict=None, guided_json=None, lora=None)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "names"), [(CHAT, LABELS), (CHAT, NO_EFFECT), ("/completion", NO_EFFECT)])
def test_fields_without_effect_are_accepted_and_documented(
    fake_server: Server, path: str, names: frozenset[str]
) -> None:
    response = _post(fake_server, path, **dict.fromkeys(names, 1))
    assert response.status_code == 200, response.text
    assert HEADER not in response.headers, "they are known"
    documented = (Path(__file__).parents[2] / "docs/guides/http-api.md").read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in documented] == []
