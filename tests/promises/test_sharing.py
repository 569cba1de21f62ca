"""Promises 2 and 3: a shared prefix is computed once, and a long prompt does not block running streams."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server import Server, chat_body, events
from tests.tiers import full

SYSTEM = "You are the caretaker of a paddock. " + " ".join(
    f"Rule {n}: horse {n} eats at {n} o'clock." for n in range(16)
)


@pytest.fixture(scope="module", params=["unified", pytest.param("streams", marks=full)])
def server(request: pytest.FixtureRequest, demo_model: Any) -> Any:
    layout = "-kvu" if request.param == "unified" else "-no-kvu"
    with Server("-m", str(demo_model), "-np", "4", "-c", "8192", layout, "-fa", "on") as server:
        server.chat("Hello", max_tokens=1)
        yield server


def _ask(server: Server, question: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    response = server.client.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, **options})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _cached(body: dict[str, Any]) -> int:
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_concurrent_requests_compute_a_common_prefix_once(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        bodies = list(pool.map(lambda n: _ask(server, f"When does horse {n} eat?", max_tokens=4), range(4)))
    size = bodies[0]["usage"]["prompt_tokens"]
    computed = sum(body["usage"]["prompt_tokens"] - _cached(body) for body in bodies)
    assert computed < size + 4 * 24


def test_a_repeated_prompt_is_cached(server: Server) -> None:
    _ask(server, "When does horse 7 eat?", max_tokens=2)
    again = _ask(server, "When does horse 7 eat?", max_tokens=2)
    assert _cached(again) == again["usage"]["prompt_tokens"] - 1


def test_the_next_turn_reuses_the_previous_answer(server: Server) -> None:
    first = _ask(server, "Which horse eats first?", max_tokens=24)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Which horse eats first?"},
        first["choices"][0]["message"],
        {"role": "user", "content": "And then?"},
    ]
    second = server.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert _cached(second) >= first["usage"]["total_tokens"] - 1


@full
def test_cache_prompt_false(server: Server) -> None:
    question = "Does horse 11 eat at night?"
    assert _cached(_ask(server, question, max_tokens=1, cache_prompt=False)) == 0
    known = _cached(_ask(server, question, max_tokens=1))
    assert known < _ask(server, question, max_tokens=1)["usage"]["prompt_tokens"] - 1


def test_a_stream_continues_during_a_long_prefill(server: Server) -> None:
    """The running stream gets several tokens between the start of a long prompt and its first token."""
    body = chat_body("Count from one to a thousand.", max_tokens=400, stream=True, temperature=0, ignore_eos=True)
    with server.client.stream("POST", "/v1/chat/completions", json=body) as running, ThreadPoolExecutor(1) as pool:
        chunks = events(running)
        for _ in range(10):
            next(chunks)
        text = " ".join(f"Fact {n}: field {n} has {n * 7} blades of grass." for n in range(20))
        late = pool.submit(server.chat, text, max_tokens=1)
        seen = 0
        while not late.done():
            next(chunks)
            seen += 1
        assert late.result()["usage"]["prompt_tokens"] > 250
        assert seen >= 3


@full
def test_several_completions_compute_the_prompt_once(server: Server) -> None:
    sampling = {"max_tokens": 6, "temperature": 1.5, "seed": 5, "deterministic": True}
    body = _ask(server, "Name any horse.", n=3, **sampling)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in body["choices"]}) > 1
    assert body["usage"]["completion_tokens"] <= 18
    alone = _ask(server, "Name any horse.", **sampling)
    assert alone["choices"][0]["message"] == body["choices"][0]["message"]


def test_several_completions_are_streamed_in_parallel(server: Server) -> None:
    body = chat_body("Say anything.", n=2, max_tokens=5, stream=True, stream_options={"include_usage": True})
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        data = [data for _, data in events(response)]
    assert data[-1] == "[DONE]"
    chunks = [json.loads(chunk) for chunk in data[:-1]]
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1]
    assert chunks[-1]["usage"]["completion_tokens"] <= 10
