"""Draft models on a real server: they change the speed of an answer, not its content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body, events
from tests.tiers import full

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module", params=[3, 1000], ids=["sometimes wrong", "always right"])
def speculating(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server("-m", f"fake:draft={request.param}", "--draft-max", "6", "--spec-type", "draft") as server:
        yield server


def _post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _stable_parts(answer: dict[str, Any]) -> dict[str, Any]:
    """The parts of an answer that do not depend on time or chance."""
    return {key: value for key, value in answer.items() if key not in ("id", "created", "timings", "id_slot", "model")}


@full
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": ["the"]},
        {"stop": ["zebra", "quick "]},
        {"max_tokens": 1},
        {"max_tokens": 17},
        {"logprobs": True, "top_logprobs": 2, "max_tokens": 30},
        {"n": 3, "max_tokens": 40},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "required"},
        {"n_indent": 2},
    ],
    ids=str,
)
def test_a_draft_model_does_not_change_the_answer(
    speculating: Server, fake_server: Server, options: dict[str, Any]
) -> None:
    text = "say: one\n  two\n  three\nfour" if "n_indent" in options else "What does the horse do?"
    body = chat_body(text, seed=3, **options)
    expected = _post(fake_server, "/v1/chat/completions", body | {"speculative.type": "none"})
    answer = _post(speculating, "/v1/chat/completions", body)
    again = _post(speculating, "/v1/chat/completions", body)
    for choice in (*expected["choices"], *answer["choices"], *again["choices"]):
        for call in choice["message"].get("tool_calls") or ():
            del call["id"]
    answer["usage"].pop("prompt_tokens_details"), expected["usage"].pop("prompt_tokens_details")
    assert _stable_parts(answer) == _stable_parts(expected)
    assert answer["choices"] == again["choices"]
    assert "draft_n" not in expected["timings"]
    if options.get("max_tokens") != 1:
        assert 0 < answer["timings"]["draft_n_accepted"] <= answer["timings"]["draft_n"]


def test_each_token_is_a_separate_event(speculating: Server, fake_server: Server) -> None:
    body = {"prompt": "Once upon", "stream": True, "timings_per_token": True, "n_probs": 2}
    streamed = []
    for server in (fake_server, speculating):
        with server.client.stream("POST", "/completion", json=body) as response:
            parts = [json.loads(data) for _, data in events(response)]
        streamed.append([(part["content"], part["tokens"], part.get("completion_probabilities")) for part in parts])
        assert [part["timings"]["predicted_n"] for part in parts[:-1]] == list(range(1, len(parts)))
    assert streamed[0] == streamed[1]


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Server]:
    with Server("-m", "fake:", "--spec-type", "none") as server:
        yield server


def test_slots_show_speculation(speculating: Server, plain_server: Server) -> None:
    for server, drafts in ((speculating, True), (plain_server, False)):
        timings = server.chat("What does the mare do?", seed=1)["timings"]
        slots = server.client.get("/slots").json()
        assert all(slot["speculative"] is drafts for slot in slots)
        shown = next(slot for slot in slots if slot["id_task"] == max(slot["id_task"] for slot in slots))["timings"]
        assert (shown.get("draft_n"), shown.get("draft_n_accepted")) == (
            timings.get("draft_n"),
            timings.get("draft_n_accepted"),
        )


def test_draft_options_of_a_request(speculating: Server) -> None:
    def timings(**wishes: Any) -> dict[str, Any]:
        body = chat_body("How far?", seed=1, **{f"speculative.{name}": value for name, value in wishes.items()})
        found: dict[str, Any] = _post(speculating, "/v1/chat/completions", body)["timings"]
        return found

    assert "draft_n" in timings()
    assert "draft_n" not in timings(n_max=0)
    assert "draft_n" not in timings(n_max=2, n_min=3)
    assert timings(n_max=1)["draft_n_accepted"] < timings(n_max=6)["draft_n_accepted"]
    for name, value in (("n_max", -1), ("n_max", 65), ("n_min", 1.5), ("p_min", 2)):
        response = speculating.client.post("/completion", json={"prompt": "x", f"speculative.{name}": value})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == f"speculative.{name}"


def test_deterministic_requests_do_not_speculate(speculating: Server) -> None:
    assert "draft_n" not in speculating.chat("Again?", deterministic=True)["timings"]


# ── models of files ──────────────────────────────────────────────────────────────────────────────────────────────────


@full
def test_the_demo_model_as_its_own_draft(demo_model: Path) -> None:
    with Server(
        "-m", str(demo_model), "-md", str(demo_model), "-c", "2048", "--draft-p-min", "0.5", "--spec-type", "draft"
    ) as server:
        props = server.client.get("/props").json()["draft"]
        assert (props["model_path"], props["p_min"], props["answers"]) == (str(demo_model), 0.5, None)
        for question in ("What is the capital of France?", "List the days of the week."):
            body = chat_body(question, temperature=0, max_tokens=24)
            drafted = _post(server, "/v1/chat/completions", body)
            plain = _post(server, "/v1/chat/completions", body | {"speculative.n_max": 0})
            assert drafted["choices"] == plain["choices"]
            assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
            assert drafted["timings"]["draft_n_accepted"] >= 0.8 * drafted["timings"]["draft_n"] > 0
            assert "draft_n" not in plain["timings"]
        assert server.client.get("/props").json()["draft"]["answers"] > 0
        assert all(slot["speculative"] for slot in server.client.get("/slots").json())


def test_thinking_budget_with_a_draft_model(tiny_models: dict[str, Path]) -> None:
    """Drafts end where the budget does."""
    model = str(tiny_models["caller"])
    with Server("-m", model, "-md", model, "-c", "1024", "--draft-p-min", "0", "--spec-type", "draft") as server:
        asked: dict[str, Any] = {"enable_thinking": True, "max_tokens": 20, "temperature": 0}
        assert server.chat("Think.", **asked)["timings"]["draft_n"] > 0
        answer = server.chat("Think.", **asked, thinking_budget_tokens=7)
        assert answer["timings"]["draft_n"] > 0
        assert 7 <= answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 10


def test_a_draft_model_with_another_vocabulary_fails_the_load(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["llama"]), "-md", str(tiny_models["caller"])) as server:
        response = server.client.post("/v1/chat/completions", json=chat_body("Hello"))
        assert response.status_code == 503
        message = response.json()["error"]["message"]
        assert "caller.gguf cannot be the draft model: its token 5 is b'[THINK]'" in message


@full
def test_draft_model_setting_and_reload(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """A relative path starts at the models directory. A reload adds, changes and removes the draft model."""
    directory = tiny_models["llama"].parent
    config = tmp_path / "config.json"

    def configure(**settings: Any) -> None:
        settings["spec_type"] = "draft"
        manager = {"models_directory": str(directory), "n_ctx": 1024, "models": {"llama": settings}}
        config.write_text(json.dumps({"model_manager": manager}))

    def timings(server: Server) -> dict[str, Any]:
        body = {"model": "llama", "prompt": "the horse", "n_predict": 30, "temperature": 0, "ignore_eos": True}
        found: dict[str, Any] = _post(server, "/completion", body)["timings"]
        return found

    configure()
    with Server("--config", str(config)) as server:
        assert "draft_n" not in timings(server)
        configure(model_draft="draft.gguf", draft_max=3, draft_p_min=0)
        assert server.client.post("/admin/reload").json()["changed"] == ["llama"]
        assert timings(server)["draft_n"] > 0
        props = server.client.get("/props", params={"model": "llama"}).json()["draft"]
        assert (props["model_path"], props["n_max"], props["p_min"]) == (str(directory / "draft.gguf"), 3, 0.0)
        configure(model_draft="nowhere.gguf")
        server.client.post("/admin/reload")
        refused = server.client.post("/completion", json={"model": "llama", "prompt": "x"})
        assert refused.status_code == 503
        assert "cannot read the draft model" in refused.json()["error"]["message"]
