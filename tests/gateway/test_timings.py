"""`timings`, `prompt_progress` and `__verbose`: in the places where llama-server has them, and only there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server import Server, chat_body, events

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def _post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _stream(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        return [json.loads(data) for _, data in events(response) if data != "[DONE]"]


def test_anthropics_answers_have_no_timings(fake_server: Server) -> None:
    body = {**chat_body("say: hello"), "max_tokens": 9, "timings_per_token": True}
    assert "timings" not in _post(fake_server, "/v1/messages", body)
    assert not any("timings" in event for event in _stream(fake_server, "/v1/messages", body))


def test_a_response_has_timings_in_the_last_event_of_its_stream(fake_server: Server) -> None:
    body = {"input": "say: hello"}
    assert "timings" not in _post(fake_server, RESPONSES, body)
    *others, last = _stream(fake_server, RESPONSES, body)
    assert not any("timings" in event for event in others)
    assert last["type"] == "response.completed"
    assert "timings" not in last["response"]
    assert last["timings"]["predicted_n"] == last["response"]["usage"]["output_tokens"] == 6


def test_a_response_has_timings_per_token_and_progress_if_asked(fake_server: Server) -> None:
    body = {"input": "say: hello", "timings_per_token": True, "return_progress": True}
    received = _stream(fake_server, RESPONSES, body)
    text = [event for event in received if event["type"] == "response.output_text.delta"]
    assert [event["timings"]["predicted_n"] for event in text] == [1, 2, 3, 4, 5]
    progress = [event for event in received if "prompt_progress" in event]
    assert {event["type"] for event in progress} == {"response.in_progress"}
    assert progress[-1]["prompt_progress"]["processed"] == progress[-1]["prompt_progress"]["total"]


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, chat_body("y" * 50)), (COMPLETIONS, {"prompt": "y" * 50}), ("/completion", {"prompt": "y" * 50})],
)
def test_progress_begins_with_what_is_cached(fake_server: Server, path: str, body: dict[str, Any]) -> None:
    fields = {"max_tokens": 2, "return_progress": True, "timings_per_token": True}
    for _ in range(2):
        received = _stream(fake_server, path, {**body, **fields})
        progress = [event for event in received if "prompt_progress" in event]
        steps = [event["prompt_progress"] for event in progress]
        for event, step in zip(progress, steps, strict=True):
            timings = event["timings"]
            assert (timings["cache_n"], timings["predicted_n"]) == (step["cache"], 0)
            assert timings["prompt_n"] == step["processed"] - step["cache"]
            assert timings["prompt_ms"] == step["time_ms"]
        assert steps[0]["processed"] == steps[0]["cache"]
        assert steps[-1]["processed"] == steps[-1]["total"]
    assert steps[0]["cache"] >= 40


def test_reasoning_and_calls_have_timings_per_token() -> None:
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<think>"
    with Server("-m", "fake:", "--chat-template", template) as server:
        body = {"messages": [{"role": "user", "content": "on"}], "max_tokens": 4, "timings_per_token": True}
        received = _stream(server, CHAT, body)
    thoughts = [chunk for chunk in received if chunk["choices"][0]["delta"].get("reasoning_content")]
    assert thoughts and all("timings" in chunk for chunk in thoughts)


# ── what the time was spent on ───────────────────────────────────────────────────────────────────────────────────────

PARTS = ("load_ms", "queue_ms", "media_ms", "restore_ms", "prefill_ms", "decode_ms", "others_ms", "overhead_ms")


def _adds_up(timings: dict[str, Any], waited: float) -> None:
    """The parts are all there, and together no more than the seconds that the client has waited."""
    assert all(timings[part] >= 0 for part in PARTS)
    assert timings["total_ms"] == pytest.approx(sum(timings[part] for part in PARTS), abs=0.01)
    assert timings["prompt_ms"] + timings["predicted_ms"] <= timings["total_ms"] + 0.01
    assert timings["total_ms"] <= 1000 * waited


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body("say: hello")),
        (CHAT, chat_body("say: hello", n=3)),
        (COMPLETIONS, {"prompt": ["a gate", "a horse"], "max_tokens": 5}),
        ("/completion", {"prompt": "a gate", "n_predict": 5}),
    ],
)
def test_the_parts_of_the_time_add_up(fake_server: Server, path: str, body: dict[str, Any]) -> None:
    begun = time.monotonic()
    timings = _post(fake_server, path, body)["timings"]
    _adds_up(timings, time.monotonic() - begun)
    begun = time.monotonic()
    first, *_, last = _stream(fake_server, path, {**body, "timings_per_token": True})
    _adds_up(last["timings"], time.monotonic() - begun)
    assert "total_ms" not in first.get("timings", {}), "only at the end"


def test_the_time_of_a_load_and_of_others_is_told() -> None:
    with Server("-m", "fake:delay=0.01", "-np", "1") as server:
        first = _post(server, CHAT, chat_body("say: hello"))["timings"]
        assert first["load_ms"] > max(first[part] for part in ("queue_ms", "restore_ms"))
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: _post(server, CHAT, chat_body("say: hello hello")), range(3)))
        waits = sorted(answer["timings"]["queue_ms"] for answer in answers)
        longest = max(answer["timings"]["predicted_ms"] for answer in answers)
        assert waits[-1] >= longest, "it waited for two others"
        assert all(answer["timings"]["load_ms"] < waits[-1] for answer in answers)


# ── verbose ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_verbose_chat_has_llama_servers_own_answer(fake_server: Server) -> None:
    body = _post(fake_server, CHAT, chat_body("say: hello", verbose=True, max_tokens=3, temperature=0.5))
    verbose = body["__verbose"]
    assert (verbose["content"], verbose["stop_type"], verbose["truncated"]) == ("hel", "limit", False)
    assert verbose["tokens_evaluated"] == body["usage"]["prompt_tokens"]
    assert verbose["generation_settings"]["temperature"] == 0.5
    assert verbose["generation_settings"]["n_predict"] == 3
    assert "say: hello" in verbose["prompt"]
    assert verbose["timings"] == body["timings"]
    *others, last = _stream(fake_server, CHAT, chat_body("say: hello", verbose=True))
    assert not any("__verbose" in chunk for chunk in others)
    assert (last["__verbose"]["content"], last["__verbose"]["stop_type"]) == ("", "eos")


def test_every_part_of_a_verbose_completion_has_it(fake_server: Server) -> None:
    body = {"prompt": "a gate", "max_tokens": 3, "verbose": True}
    assert _post(fake_server, COMPLETIONS, body)["__verbose"]["prompt"].endswith("a gate")
    *parts, last = _stream(fake_server, COMPLETIONS, body)
    assert [part["__verbose"]["content"] for part in parts] == [part["choices"][0]["text"] for part in parts]
    assert last["__verbose"]["stop"] is True


def test_without_verbose_there_is_none(fake_server: Server) -> None:
    assert "__verbose" not in fake_server.chat("say: hello")
    assert "__verbose" not in _post(fake_server, RESPONSES, {"input": "say: hello", "verbose": True})


@pytest.fixture(scope="module")
def verbose_server() -> Iterator[Server]:
    with Server("-m", "fake:", "-v") as server:
        yield server


def test_the_flag_is_the_default(verbose_server: Server) -> None:
    assert "__verbose" in verbose_server.chat("say: hello")
    assert "__verbose" not in verbose_server.chat("say: hello", verbose=False)
