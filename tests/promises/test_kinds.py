"""Promise 2 for models that reuse whole states only (recurrent, hybrid, sliding window)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server
from tests.tiers import full

SYSTEM = "You keep the paddock. " + " ".join(f"Horse {n} eats {n % 7} apples." for n in range(12))
QUESTIONS = ["Who eats most of them?", "Which horse eats no apple?", "How many horses are there?", "What do I owe you?"]


@pytest.fixture(scope="module", params=["sliding_window", "recurrent", "hybrid"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["-kvu", "-no-kvu"])
def server(request: pytest.FixtureRequest, tiny_models: dict[str, Path], kind: str) -> Iterator[Server]:
    # With f32 caches the batch shape does not change the text.
    exact = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
    with Server("-m", str(tiny_models[kind]), request.param, "-np", "4", "-c", "4096", *exact) as server:
        yield server


def _ask(server: Server, question: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **options}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _texts(body: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in body["choices"]]


def _computed(body: dict[str, Any]) -> int:
    usage = body["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])


@full
def test_a_shared_prompt_is_computed_once(server: Server) -> None:
    alone = [_texts(_ask(server, question, cache_prompt=False)) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: _ask(server, question), QUESTIONS))
    assert list(map(_texts, together)) == alone
    later = [_ask(server, question) for question in QUESTIONS]
    assert list(map(_texts, later)) == alone
    assert [_computed(body) for body in later] == [1] * len(QUESTIONS)
    newcomer = _ask(server, "May I ride one of them tomorrow morning?")
    assert _computed(newcomer) < newcomer["usage"]["prompt_tokens"] / 3


@full
def test_several_completions_equal_single_ones(server: Server) -> None:
    (alone,) = _texts(_ask(server, "Which is the oldest of the horses?", cache_prompt=False))
    assert _texts(_ask(server, "Which is the oldest of the horses?", n=3)) == [alone] * 3


def test_the_next_turn_reuses_the_conversation(server: Server) -> None:
    first = _ask(server, "Who is the youngest of them all?")
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Who is the youngest of them all?"},
        first["choices"][0]["message"],
        {"role": "user", "content": "And then?"},
    ]
    second = _ask(server, "", messages=messages)
    assert _texts(second) == _texts(_ask(server, "", messages=messages, cache_prompt=False))
    assert _computed(second) < second["usage"]["prompt_tokens"] / 3


def test_cache_prompt_false(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "A prompt that no other test starts with. " * 4}]}
    sizes = [
        _computed(server.client.post("/v1/chat/completions", json={**body, "max_tokens": 2, **options}).json())
        for options in ({"cache_prompt": False}, {}, {"cache_prompt": False}, {})
    ]
    assert sizes[0] == sizes[2] and sizes[1] > sizes[0] - 16
    assert sizes[3] == 1
