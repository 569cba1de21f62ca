"""No combination of sampler settings ends a worker, and other requests get the answers that they get alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.sampling import accepted_settings
from tests.server import Server
from tests.tiers import is_full_tier

_AT_ONCE = 10
_REQUESTS = 5000 if is_full_tier() else 100
# With this arithmetic the text does not depend on the other requests of a step.
_OPTIONS = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-t", "1", "-c", "512", "-np", "4", "-kvu")
_N_VOCAB = 347
_A = 3 + ord("a")
"""The token for this byte. Another one has the letter."""
_NEITHER_A = [["a", False], [_A, False]]
_NOTHING = [[token, False] for token in range(_N_VOCAB)]
_HEALTHY = {"prompt": "the horse and the brook and the horse and ", "temperature": 0, "n_predict": 12}
_POISON = {
    "prompt": "Once",
    "grammar": 'root ::= "a"',
    "logit_bias": _NEITHER_A,
    "top_n_sigma": 1,
    "n_predict": 8,
}

_prompts = st.sampled_from(["", "a", "Once upon a time ", "a b a b a b a b ", '{"a": 0, "a": 1, "a": 0, ', "the " * 60])
_constraints: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"grammar": 'root ::= "a"'},
        {"grammar": "root ::= [a-c]* [01]"},
        {"regex": "(ab)+|[0-9]{1,3}"},
        {"json_schema": {"type": "object", "properties": {"a": {"enum": [0, 1]}}, "required": ["a"]}},
        {"json_schema": {"enum": ["horse", "brook", "horses"]}},
        {"grammar": 'root ::= "a"', "logit_bias": _NEITHER_A},
        {"grammar": "root ::= [ab]* [01]", "logit_bias": [["0", False], ["1", False], *_NEITHER_A]},
        {"regex": "[a-z ]+", "logit_bias": _NOTHING},
    ]
)
_tokens = st.sampled_from([_A, 2]) | st.integers(0, _N_VOCAB - 1)
_breakers = st.lists(st.sampled_from(["\n", "a", "the", " "]), max_size=3)
_SETTINGS = accepted_settings(_tokens) | {
    "dry_sequence_breakers": _breakers,
    "n_probs": st.sampled_from([0, 3, 1024]),
    "n_cmpl": st.integers(1, 4),
    "stop": st.lists(st.sampled_from(["a", "the", "}"]), max_size=2),
    "cache_prompt": st.booleans(),
    "speculative.n_max": st.sampled_from([0, 1, 16]),
}


@st.composite
def _body(draw: st.DrawFn) -> dict[str, Any]:
    names = sorted(draw(st.sets(st.sampled_from(sorted(_SETTINGS)))))
    given = {name: draw(_SETTINGS[name]) for name in names}
    if "logit_bias" in given:
        given["logit_bias"] = [(token, False if bias == -math.inf else bias) for token, bias in given["logit_bias"]]
    return {"prompt": draw(_prompts), "n_predict": draw(st.integers(0, 8)), **given, **draw(_constraints)}


@dataclass(frozen=True)
class _Fuzzed:
    server: Server
    healthy: str
    threads: ThreadPoolExecutor

    def post(self, body: dict[str, Any]) -> httpx.Response:
        return self.server.client.post("/completion", json=body)


@pytest.fixture(scope="module")
def fuzzed(tiny_models: dict[str, Path]) -> Iterator[_Fuzzed]:
    """A server that verifies guesses wherever there are any."""
    arguments = ["-m", str(tiny_models["llama"]), "--spec-type", "ngram"]
    with Server(*arguments, *_OPTIONS) as server, ThreadPoolExecutor(_AT_ONCE) as threads:
        first, again = (server.client.post("/completion", json=_HEALTHY).json() for _ in range(2))
        assert again["timings"]["draft_n_accepted"] > 0
        yield _Fuzzed(server, first["content"], threads)


def _check(response: httpx.Response) -> None:
    body = response.json()
    if response.status_code == 200:
        assert all("content" in answer for answer in (body if isinstance(body, list) else [body]))
        return
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    # The other errors are bugs: the fields are valid, and the model's logits are finite.
    assert (response.status_code, error["code"]) == (400, "constraint_failed"), response.text


def test_a_request_whose_every_token_is_forbidden(fuzzed: _Fuzzed) -> None:
    before = fuzzed.server.workers()
    poisoned, *neighbours = fuzzed.threads.map(fuzzed.post, [_POISON, *[_HEALTHY] * 3])
    error = poisoned.json()["error"]
    assert (poisoned.status_code, error["code"], error["param"]) == (400, "constraint_failed", "grammar")
    assert [one.json()["content"] for one in neighbours] == [fuzzed.healthy] * 3
    assert fuzzed.server.workers() == before


@settings(max_examples=_REQUESTS // _AT_ONCE)
@given(st.lists(_body(), min_size=_AT_ONCE - 1, max_size=_AT_ONCE - 1))
def test_any_settings(fuzzed: _Fuzzed, bodies: Sequence[dict[str, Any]]) -> None:
    before = fuzzed.server.workers()
    *answers, neighbour = fuzzed.threads.map(fuzzed.post, [*bodies, _HEALTHY])
    for answer in answers:
        _check(answer)
    assert neighbour.json()["content"] == fuzzed.healthy
    assert fuzzed.server.workers() == before
