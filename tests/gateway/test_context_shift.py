"""`--context-shift` over HTTP: answers longer than the context, and what else goes on undisturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from paddock.engine.fake_text import next_token
from paddock.scheduling import ContextShift
from paddock.types import SamplingParams
from tests.server import Server, events, wait_for

# Less than 64 tokens: the fake's answers have no end before that.
_N_CTX = 60
_PROMPT = "a long story"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(
        "-m", f"fake:n_ctx={_N_CTX}", "-np", "4", "--context-shift", "--keep", "5", env={"PADDOCK_CHECK_CACHE": "1"}
    ) as server:
        yield server


def _complete(server: Server, **options: Any) -> dict[str, Any]:
    response = server.client.post("/completion", json={"prompt": _PROMPT, "return_tokens": True, **options})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _expected(server: Server, keep: int, discard: int, count: int) -> list[int]:
    body = {"content": _PROMPT, "add_special": True}
    history = server.client.post("/tokenize", json=body).json()["tokens"]
    shift = ContextShift(keep + 1, discard)  # `n_keep` does not count the token that the vocabulary adds
    answer: list[int] = []
    for _ in range(count):
        answer.append(next_token(history, SamplingParams(), ()))
        history.append(answer[-1])
        if len(history) == _N_CTX:
            dropped = shift.dropped(_N_CTX)
            history = history[: dropped.start] + history[dropped.stop :]
    return answer


@pytest.mark.parametrize(("given", "keep", "discard"), [({}, 5, 0), ({"n_keep": -1, "n_discard": 7}, 13, 7)])
def test_an_answer_goes_on_beyond_the_context(server: Server, given: dict[str, int], keep: int, discard: int) -> None:
    body = _complete(server, n_predict=300, **given)
    assert body["tokens"] == _expected(server, keep, discard, 300)
    assert (body["truncated"], body["stop_type"], body["tokens_predicted"]) == (True, "limit", 300)
    assert body["tokens_evaluated"] == len(_PROMPT) + 1
    settings = body["generation_settings"]
    assert (settings["n_keep"], settings["n_discard"]) == (given.get("n_keep", 5), discard)


def test_an_answer_within_the_context_is_not_truncated(server: Server) -> None:
    assert _complete(server, n_predict=_N_CTX - len(_PROMPT) - 1)["truncated"] is False


def test_text_probabilities_and_stop_strings_go_on(server: Server) -> None:
    whole = _complete(server, n_predict=200, n_probs=2)
    assert len(whole["completion_probabilities"]) == 200
    stream = {"prompt": _PROMPT, "n_predict": 200, "stream": True}
    with server.client.stream("POST", "/completion", json=stream) as response:
        parts = [json.loads(data) for _, data in events(response)]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert parts[-1]["truncated"] is True
    stop = whole["content"][150:160]
    stopped = _complete(server, n_predict=200, stop=[stop])
    assert stopped["content"] == whole["content"].partition(stop)[0]
    assert (stopped["stop_type"], stopped["stopping_word"], stopped["truncated"]) == ("word", stop, True)


def test_a_grammar_goes_on(server: Server) -> None:
    body = _complete(server, regex="[a-z]{150}", n_predict=-1)
    assert len(body["content"]) == 150
    assert (body["stop_type"], body["truncated"]) == ("eos", True)


def test_every_one_of_several_answers_goes_on(server: Server) -> None:
    response = server.client.post("/completion", json={"prompt": [_PROMPT] * 3, "n_predict": 100, "n_cmpl": 2})
    assert len({answer["content"] for answer in response.json()}) == 1
    assert all(answer["tokens_predicted"] == 100 for answer in response.json())


def test_without_a_limit_an_answer_ends_when_the_client_disconnects(server: Server) -> None:
    with server.client.stream("POST", "/completion", json={"prompt": _PROMPT, "stream": True}) as response:
        assert len(list(islice(events(response), 5 * _N_CTX))) == 5 * _N_CTX
    free = lambda: not any(slot["is_processing"] for slot in server.client.get("/slots").json())  # noqa: E731
    wait_for(free, 30, "the slot to be free")


def test_a_prompt_that_does_not_fit_is_refused_all_the_same(server: Server) -> None:
    response = server.client.post("/completion", json={"prompt": "a" * _N_CTX})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_deterministic_requests_are_refused(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "deterministic": True}
    response = server.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "deterministic")
    assert "context_shift" in response.json()["error"]["message"]


def test_props_show_it(server: Server) -> None:
    props = server.client.get("/props").json()
    assert props["context"]["shift"] is True
    assert props["default_generation_settings"]["params"]["n_keep"] == 5


def test_without_it_an_answer_ends_with_the_context() -> None:
    with Server("-m", f"fake:n_ctx={_N_CTX}") as server:
        body = _complete(server, n_keep=3)
        assert (body["truncated"], body["stop_type"]) == (True, "limit")
        assert body["tokens_evaluated"] + body["tokens_predicted"] == _N_CTX
        chat = server.chat("hi")
        assert chat["choices"][0]["finish_reason"] == "length"
