"""`cache_report`: on every route that generates, whole or streamed, and never with another key's words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.key_config import ADMIN, CHAT, KeyConfig, headers_of
from tests.server import Server, chat_body, events
from tests.tiers import full

_Make = Callable[[str], dict[str, Any]]
_RULES = "You are a careful assistant of the library. Answer in one short sentence and name your sources. "


def _system(word: str) -> str:
    return f"billing: version=2; cch={word}; {_RULES}"


def _messages(word: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": _system(word)}, {"role": "user", "content": "Which books are new?"}]


_ROUTES: dict[str, _Make] = {
    "/v1/chat/completions": lambda word: {"messages": _messages(word), "max_tokens": 2},
    "/v1/completions": lambda word: {"prompt": _system(word), "max_tokens": 2},
    "/v1/responses": lambda word: {"instructions": _system(word), "input": "Which are new?", "max_output_tokens": 2},
    "/v1/messages": lambda word: {"system": _system(word), "messages": _messages(word)[1:], "max_tokens": 2},
    "/completion": lambda word: {"prompt": _system(word), "n_predict": 2},
}


def _report(server: Server, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = server.client.post(path, json=body | {"cache_report": True}, headers=headers)
    assert response.status_code == 200, response.text
    report: dict[str, Any] = response.json()["cache_report"]
    return report


def _streamed(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        return [json.loads(data) for _, data in events(response) if data != "[DONE]"]


_NOT_CHAT = [pytest.param(path, marks=full) for path in _ROUTES if path != "/v1/chat/completions"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", *_NOT_CHAT])
def test_a_changed_word_is_named(demo_server: Server, path: str) -> None:
    make = _ROUTES[path]
    kind = path.replace("/", "")
    demo_server.client.post(path, json=make(f"{kind}3f2a"))
    report = _report(demo_server, path, make(f"{kind}91bc"))
    reused, parted = report["reused"], report["parted"]
    assert report["reason"] == "changed"
    assert sum(reused.values()) + report["computed"] == report["prompt_tokens"]
    assert (parted["text"].split()[0], parted["known"].split()[0]) == (f"cch={kind}91bc;", f"cch={kind}3f2a;")
    character = _system(f"{kind}91bc").index("91bc")
    if parted["message"] is None:
        assert path in ("/v1/completions", "/completion")
        assert parted["character"] == character
        assert f"Character {character} of the prompt" in report["summary"]
    else:
        assert parted["message"] == {"index": 0, "role": "system", "character": character}
        assert f"System message, character {character}: `cch={kind}91bc;` against" in report["summary"]


@pytest.mark.parametrize("path", _ROUTES)
def test_the_last_event_has_the_report(demo_server: Server, path: str) -> None:
    body = _ROUTES[path]("streams")
    demo_server.client.post(path, json=body)
    received = _streamed(demo_server, path, {**body, "cache_report": True})
    found = [number for number, event in enumerate(received) if "cache_report" in json.dumps(event)]
    last = len(received) - (2 if path == "/v1/messages" else 1)  # message_stop has nothing
    assert found == [last]
    event = received[last]
    report = event["response"]["cache_report"] if path == "/v1/responses" else event["cache_report"]
    assert report["reason"] == "hit" and report["computed"] == 1
    assert not any("cache_report" in json.dumps(event) for event in _streamed(demo_server, path, body))


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "say: a chat of Ollama's"}]}),
        ("/api/generate", {"prompt": "say: a prompt of Ollama's"}),
    ],
)
def test_the_end_of_an_answer_in_ollamas_format_has_the_report(
    fake_server: Server, path: str, prompt: dict[str, Any]
) -> None:
    body = {"model": "fake", **prompt}
    report = _report(fake_server, path, body | {"stream": False})
    assert sum(report["reused"].values()) + report["computed"] == report["prompt_tokens"]
    lines = fake_server.client.post(path, json=body | {"cache_report": True}).text.splitlines()
    *others, last = map(json.loads, lines)
    assert last["done"] and last["cache_report"]["reason"] == "hit"
    assert others and not any("cache_report" in line for line in others)
    assert "cache_report" not in fake_server.client.post(path, json=body).text


def test_with_usage_the_report_is_in_the_usage_chunk(fake_server: Server) -> None:
    options = {"cache_report": True, "stream_options": {"include_usage": True}}
    for path, body in ((CHAT, chat_body("say: usage")), ("/v1/completions", {"prompt": "say: usage"})):
        received = _streamed(fake_server, path, body | options)
        assert ["cache_report" in event for event in received] == [False] * (len(received) - 1) + [True]


def test_several_prompts_have_a_list_of_reports(fake_server: Server) -> None:
    body = {"prompt": ["say: first of the list", "say: second of the list"], "max_tokens": 1, "cache_report": True}
    answer = fake_server.client.post("/v1/completions", json=body).json()
    assert [report["prompt_tokens"] for report in answer["cache_report"]] == [23, 24]
    native = fake_server.client.post("/completion", json=body).json()
    assert [one["cache_report"]["reason"] for one in native] == ["hit", "hit"]
    *_, last = _streamed(fake_server, "/v1/completions", body)
    assert len(last["cache_report"]) == 2


def test_several_answers_share_one_report(fake_server: Server) -> None:
    body = chat_body("say: three answers", n=3)
    answer = fake_server.client.post(CHAT, json=body | {"cache_report": True}).json()
    assert len(answer["choices"]) == 3
    assert answer["cache_report"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    received = _streamed(fake_server, CHAT, {**body, "cache_report": True})
    assert [("cache_report" in event) for event in received].count(True) == 1
    assert "cache_report" in received[-1]


def test_a_place_in_a_later_message_and_in_a_tool(demo_server: Server) -> None:
    def conversation(last: str) -> dict[str, Any]:
        turns = [*_messages("turns"), {"role": "assistant", "content": "None this week."}]
        return {"messages": [*turns, {"role": "user", "content": f"And {last} the older ones?"}], "max_tokens": 1}

    demo_server.client.post(CHAT, json=conversation("about"))
    parted = _report(demo_server, CHAT, conversation("among"))["parted"]
    assert (parted["message"]["index"], parted["message"]["role"]) == (3, "user")
    assert (parted["text"].split()[0], parted["known"].split()[0]) == ("among", "about")


def test_without_the_cache_the_report_says_so(fake_server: Server) -> None:
    report = _report(fake_server, CHAT, chat_body("say: off", cache_prompt=False))
    assert (report["reason"], report["reused"]) == ("off", {"cells": 0, "host": 0, "disk": 0})


def test_a_report_that_is_not_a_boolean_is_refused(fake_server: Server) -> None:
    response = fake_server.client.post(CHAT, json=chat_body("say: x", cache_report="yes"))
    assert response.status_code == 400 and response.json()["error"]["param"] == "cache_report"


def test_a_default_of_the_settings_adds_reports() -> None:
    defaults = {"PADDOCK_MODEL_MANAGER__DEFAULTS": '{"cache_report": true}'}
    with Server("-m", "fake:", env=defaults) as server:
        assert server.chat("say: hi")["cache_report"]["reason"] == "new"


# ── other keys ───────────────────────────────────────────────────────────────────────────────────────────────────────

_SECRET = "the password is Rumpelstiltskin"


def _asked(server: Server, name: str, text: str) -> str:
    body = chat_body(text, model="llama-small", max_tokens=1, cache_report=True)
    response = server.client.post(CHAT, json=body, headers=headers_of(name))
    assert response.status_code == 200, response.text
    report = response.json()["cache_report"]
    assert report["prompt_tokens"] == sum(report["reused"].values()) + report["computed"]
    return json.dumps(report)


@pytest.mark.parametrize("tenants", [{}, {"anna": "a", "ben": "b"}, {"anna": "a"}])
def test_no_report_has_the_words_of_another_key(config: KeyConfig, tenants: dict[str, str]) -> None:
    config.keys["ben"]["models"] = ["llama-*"]
    for name, tenant in tenants.items():
        config.keys[name]["tenant"] = tenant
    with config.server() as server:
        _asked(server, "anna", _SECRET)
        for guess in ("the password is guessed", "the password is Rumpel", "the", _SECRET[:-3]):
            report = _asked(server, "ben", guess)
            assert "Rumpelstiltskin" not in report and "stiltskin" not in report
        own = _asked(server, "anna", "the password is other")
        assert "Rumpelstiltskin" in own, "her own words are shown"


def test_keys_of_one_tenant_see_each_others_words(config: KeyConfig) -> None:
    config.keys["ben"] |= {"models": ["llama-*"], "tenant": "house"}
    config.keys["anna"]["tenant"] = "house"
    with config.server() as server:
        _asked(server, "anna", _SECRET)
        assert "Rumpelstiltskin" in _asked(server, "ben", "the password is guessed")


# ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [False, True])
def test_reports_are_logged_at_debug_level(words: bool) -> None:
    with Server("-m", "fake:", "--log-format", "json", "-v", *(["--log-prompts"] if words else [])) as server:
        server.chat("a gate that is open")
        assert "cache_report" not in server.chat("a gate that is wide")
    lines = [json.loads(line) for line in server.output if '"prompt cache"' in line]
    assert [line["reason"] for line in lines] == ["new", "changed"]
    assert lines[1]["role"] == "user" and lines[1]["message_character"] == 15
    assert ("text" in lines[1]) == words
    assert not words or lines[1]["text"].startswith("wide")


def test_nothing_is_logged_otherwise() -> None:
    with Server("-m", "fake:", "--log-format", "json") as server:
        server.chat("say: hi")
        assert server.client.get("/admin/status", headers=ADMIN).status_code == 200
    assert not [line for line in server.output if "prompt cache" in line]
