"""Tokens guessed from earlier text, on a real server: they change the speed of an answer, not its content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

# Without rounding to half precision a step of another shape gives the same text.
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-t", "1", "-c", "2048", "-np", "4")
TEXT = "the horse and the brook and the horse and the brook and the horse and "

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "horses": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"name_of_the_horse": {"enum": ["Bella", "Star"]}, "drinks": {"type": "boolean"}},
                "required": ["name_of_the_horse", "drinks"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["horses"],
    "additionalProperties": False,
}
_HORSE = _SCHEMA["properties"]["horses"]["items"]
_TOOL = {"type": "function", "function": {"name": "look_after_the_horse", "parameters": _HORSE}}


@pytest.fixture(scope="module")
def plain(tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("-m", str(tiny_models["llama"]), "--spec-type", "none", *EXACT) as server:
        yield server


@pytest.fixture(scope="module", params=["ngram", "auto"])
def guessing(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("-m", str(tiny_models["llama"]), "--spec-type", request.param, "--metrics", *EXACT) as server:
        yield server


def _post(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    response = server.client.post("/completion", json={"prompt": TEXT, "temperature": 0, "n_predict": 120} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignore_eos": True},
        {"temperature": 0.8, "seed": 4},
        {"n_predict": 13},
        {"n_probs": 2, "n_predict": 40},
        {"repeat_penalty": 1.3, "repeat_last_n": 20},
        {"regex": "[a-z ]{60,90}"},
        {"cache_prompt": False},
        {"json_schema": _SCHEMA, "n_predict": 200},
        {"dry_multiplier": 0.8, "dry_allowed_length": 6, "dry_sequence_breakers": ["brook"]},
        {"stop": ["qqq", "zz"], "ignore_eos": True},
    ],
    ids=str,
)
def test_guesses_do_not_change_the_answer(plain: Server, guessing: Server, options: dict[str, Any]) -> None:
    expected = _post(plain, options)
    assert "draft_n" not in expected["timings"]
    for _ in range(2):
        answer = _post(guessing, options)
        for name in ("content", "tokens_predicted", "stop_type", "stopping_word", "truncated"):
            assert answer[name] == expected[name], name
        probs = [[entry["token"] for entry in one.get("completion_probabilities", ())] for one in (answer, expected)]
        assert probs[0] == probs[1]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_several_answers_are_those_without_guesses(plain: Server, guessing: Server, options: dict[str, Any]) -> None:
    body = {"prompt": TEXT, "n": 3, "max_tokens": 80, "temperature": 0} | options
    answers = []
    for server in (plain, guessing, guessing):
        response = server.client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answers.append([(choice["text"], choice["finish_reason"]) for choice in response.json()["choices"]])
    assert answers[0] == answers[1] == answers[2]


def test_tool_calls_are_those_without_guesses(tiny_models: dict[str, Path]) -> None:
    """The frame of a call and its keys are forced, so nearly all of it is guessed."""
    asked: dict[str, Any] = {
        "tools": [_TOOL],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 300,
        "enable_thinking": False,
    }
    with Server("-m", str(tiny_models["caller"]), "--spec-type", "ngram", *EXACT[:-2], "-np", "1") as server:
        for more in ({}, {"temperature": 0.8, "seed": 5}, {"stream": True}):
            replies = [
                _calls(server, chat_body(TEXT, **asked | more, **guesses))
                for guesses in ({"speculative.n_max": 0}, {}, {})
            ]
            assert replies[0][0] == replies[1][0] == replies[2][0]
            assert replies[0][0] and [drafted > 0 for _, drafted in replies] == [False, True, True]


def _calls(server: Server, body: dict[str, Any]) -> tuple[list[Any], int]:
    """The calls of an answer, or the pieces of them in its stream, and how many tokens were guessed."""
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        if body.get("stream"):
            parts = [json.loads(data) for _, data in events(response) if data != "[DONE]"]
        else:
            parts = [json.loads(response.read())]
    assert response.status_code == 200, parts
    messages = [choice.get("delta") or choice.get("message") or {} for part in parts for choice in part["choices"]]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return calls, sum(part.get("timings", {}).get("draft_n", 0) for part in parts)


@full
def test_preempted_answers_are_those_without_guesses(tiny_models: dict[str, Path]) -> None:
    """Four long answers in cells for two: some are paused, and continue later."""
    options = (*EXACT[:-4], "-c", "512", "-np", "4", "-kvu", "--metrics")
    bodies = [{"prompt": f"{number} {TEXT}", "ignore_eos": True, "n_predict": 200} for number in range(4)]
    answers = []
    for spec_type in ("none", "ngram"):
        with Server("-m", str(tiny_models["llama"]), "--spec-type", spec_type, *options) as server:
            with ThreadPoolExecutor(4) as threads:
                answers.append([answer["content"] for answer in threads.map(lambda body: _post(server, body), bodies)])
            wait_for(lambda: _preemptions(server) > 0, 20, "the worker's counters")
    assert answers[0] == answers[1]


def _preemptions(server: Server) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("paddock_preemptions_total{"))


def test_a_stop_string_ends_the_answer_in_the_middle_of_a_guess(plain: Server, guessing: Server) -> None:
    text = _post(plain, {"ignore_eos": True})["content"]
    stop = text[len(text) // 2 :][:4]
    expected, answer = (_post(server, {"ignore_eos": True, "stop": [stop]}) for server in (plain, guessing))
    assert (answer["content"], answer["stopping_word"]) == (expected["content"], expected["stopping_word"])


def test_streams_have_an_event_for_each_token(plain: Server, guessing: Server) -> None:
    body = {"prompt": TEXT, "temperature": 0, "n_predict": 60, "ignore_eos": True, "stream": True}
    streamed = []
    for server in (plain, guessing):
        with server.client.stream("POST", "/completion", json=body) as response:
            streamed.append([json.loads(data)["content"] for _, data in events(response)])
    assert streamed[0] == streamed[1]


def test_repeated_text_is_guessed_and_counted(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["llama"]), "--spec-type", "ngram", "--metrics", *EXACT) as server:
        first = _post(server, {"ignore_eos": True})["timings"]
        again = _post(server, {"ignore_eos": True})["timings"]
        off = _post(server, {"ignore_eos": True, "speculative.n_max": 0})["timings"]
        none = _post(server, {"ignore_eos": True, "speculative.type": "none"})["timings"]
        assert 0 < again["draft_n_accepted"] <= again["draft_n"]
        assert again["draft_n_accepted"] > 60, "the same answer is in the cache"
        assert "draft_n" not in off
        assert "draft_n" not in none
        accepted = sum(timings.get("draft_n_accepted", 0) for timings in (first, again))

        def counted(name: str, source: str = "") -> float:
            lines = [line for line in server.client.get("/metrics").text.splitlines() if line.startswith(f"{name}{{")]
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'source="{source}' in line or not source)

        name = "llamacpp:spec_decode_num_accepted_tokens_total"
        wait_for(lambda: counted(name) >= accepted, 20, "the worker's counters")
        assert counted(name) == accepted == counted("paddock_accepted_tokens_total")
        assert counted("paddock_accepted_tokens_total", "tree") > 60, "the second answer is the first one again"
        drafted = sum(timings.get("draft_n", 0) for timings in (first, again))
        assert counted("paddock_drafted_tokens_total") == drafted
        tokens = sum(timings["predicted_n"] for timings in (first, again, off, none))
        wait_for(lambda: counted("llamacpp:tokens_predicted_total") >= tokens, 20, "the counters of the last answers")
        assert counted("llamacpp:tokens_predicted_total") == tokens
        assert counted("paddock_inter_token_seconds_count") == tokens - 4, "the first tokens follow no other"
        assert counted("paddock_drafted_tokens_total", "model") == 0


def test_a_thinking_budget_ends_at_the_same_token(tiny_models: dict[str, Path]) -> None:
    """The budget is used up in the middle of guesses. The model repeats its reasoning, which hardly ever ends."""
    with Server("-m", str(tiny_models["caller"]), "--spec-type", "ngram", *EXACT) as server:
        accepted = 0
        for budget in (0, 1, 7, 23, 40):
            asked: dict[str, Any] = {"enable_thinking": True, "thinking_budget_tokens": budget, "max_tokens": 60}
            asked |= {"temperature": 0, "ignore_eos": True}
            plain = server.chat(TEXT, **asked, **{"speculative.n_max": 0})
            assert "draft_n" not in plain["timings"]
            for _ in range(2):
                answer = server.chat(TEXT, **asked)
                assert answer["choices"] == plain["choices"]
                assert answer["usage"]["completion_tokens_details"] == plain["usage"]["completion_tokens_details"]
                accepted += answer["timings"].get("draft_n_accepted", 0)
        assert accepted > 100


@pytest.mark.parametrize(
    "kind", [pytest.param("delta_net", marks=full), "mamba2", pytest.param("convolution", marks=full)]
)
def test_hybrid_models_are_guessed_for(tiny_models: dict[str, Path], kind: str) -> None:
    """Alone and several at a time, also after a prefix that was computed with guesses."""
    bodies: list[dict[str, Any]] = [{"prompt": TEXT + more, "n_predict": 60, "ignore_eos": True} for more in ("", "a")]
    bodies.append({**bodies[0], "temperature": 0.7, "seed": 3})
    with Server("-m", str(tiny_models[kind]), "--spec-type", "none", *EXACT) as plain:
        expected = [_post(plain, body) for body in bodies]
    with Server("-m", str(tiny_models[kind]), "--spec-type", "ngram", *EXACT) as guessing:
        answers = [_post(guessing, body) for body in bodies * 2]
        with ThreadPoolExecutor() as threads:
            answers += threads.map(lambda body: _post(guessing, body), bodies * 2)
    assert [answer["content"] for answer in answers] == [answer["content"] for answer in expected] * 4
    assert all("draft_n" not in answer["timings"] for answer in expected)
    timings = [answer["timings"] for answer in answers]
    assert sum(one.get("draft_n_accepted", 0) for one in timings) > 100
    assert timings[3]["draft_n_accepted"] > 30, "the same answer is in the cache"


@pytest.mark.parametrize("kind", [pytest.param("recurrent", marks=full), "hybrid"])
def test_models_whose_state_cannot_be_set_back_are_not_guessed_for(tiny_models: dict[str, Path], kind: str) -> None:
    with Server("-m", str(tiny_models[kind]), "--spec-type", "ngram", *EXACT) as server:
        for _ in range(2):
            assert "draft_n" not in _post(server, {"ignore_eos": True})["timings"]


def test_a_request_limits_the_length_of_guesses(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["llama"]), "--spec-type", "ngram", *EXACT) as server:
        _post(server, {"ignore_eos": True})
        most, one, none = (
            _post(server, {"ignore_eos": True, "speculative.ngram_size_m": size})["timings"]
            for size in (2**31 - 1, 1, 0)
        )
        assert most["draft_n_accepted"] > 90
        assert 50 < one["draft_n_accepted"] <= 60, "at most every second token is a guess"
        assert "draft_n" not in none


def test_an_unknown_type_is_refused_by_name(guessing: Server) -> None:
    response = guessing.client.post("/completion", json={"prompt": "a", "speculative.type": "draft-mtp"})
    assert response.status_code == 400
    assert "speculative.type" in response.text
    assert "draft-mtp is not supported" in response.text
