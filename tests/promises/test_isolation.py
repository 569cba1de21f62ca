"""One request never fails another: not by its parameters, an exception or a crash of the worker."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"
LONG = "say: " + " ".join(f"word{number}" for number in range(60))


@pytest.fixture(scope="module")
def slow_server() -> Any:
    with Server("-m", "fake:delay=0.01", "--metrics", "-np", "4") as server:
        yield server


def _crashes(server: Server) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("paddock_model_crashes_total{"))


@pytest.mark.parametrize("more", [{"top_n_sigma": 1}, {"temperature": 0}, {"mirostat": 2}, {}])
def test_a_grammar_without_allowed_tokens_is_refused(
    more: dict[str, Any], tiny_models: dict[str, Path], tiny_server: Server
) -> None:
    vocabulary = tiny_server.client.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    body = {
        "prompt": "Once",
        "grammar": 'root ::= "a"',
        "logit_bias": [[token, False] for token in range(vocabulary)],
        "n_predict": 8,
        **more,
    }
    before = tiny_server.workers()
    response = tiny_server.client.post("/completion", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("constraint_failed", "grammar")
    assert "logit_bias" in error["message"]
    assert tiny_server.workers() == before
    assert tiny_server.client.post("/completion", json={"prompt": "Once", "n_predict": 2}).status_code == 200


@pytest.fixture(scope="module")
def tiny_server(tiny_models: dict[str, Path]) -> Any:
    with Server("-m", str(tiny_models["llama"]), "-c", "256", "-np", "2") as server:
        server.client.post("/completion", json={"prompt": "Once", "n_predict": 1})
        yield server


def test_an_exception_in_the_sampler_fails_one_request(slow_server: Server) -> None:
    slow_server.chat("say: awake")
    before = slow_server.workers()
    with slow_server.client.stream("POST", CHAT, json=chat_body(LONG, stream=True)) as neighbour:
        reading = events(neighbour)
        next(reading)
        response = slow_server.client.post(CHAT, json=chat_body("raise: now"))
        rest = list(reading)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "sampling_failed"
    assert rest[-1][1] == "[DONE]"
    assert slow_server.workers() == before
    slow_server.wait_for_line("a request failed")


def test_an_exception_in_a_step_is_a_crash(slow_server: Server) -> None:
    slow_server.chat("say: awake")
    before, counted = slow_server.workers(), _crashes(slow_server)
    with ThreadPoolExecutor(6) as threads:
        broken = threads.submit(slow_server.client.post, CHAT, json=chat_body("break: now"))
        response = broken.result()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_crashed"
    assert "asks the fake engine to fail" in response.json()["error"]["message"]
    assert slow_server.chat("say: back")["choices"][0]["message"]["content"] == "back"
    assert slow_server.workers() != before
    assert _crashes(slow_server) == counted + 2, "the request is tried twice"


@pytest.mark.parametrize("poison", ["crash: now", "break: now"])
def test_a_poisonous_request_crashes_only_one_of_two_replicas(poison: str, tmp_path: Path) -> None:
    file = tmp_path / "paddock.json"
    model = {"path": "fake:delay=0.01", "replicas": 2, "parallel": 2, "preload": True}
    file.write_text(json.dumps({"model_manager": {"models": {"pooled": model}}}))
    with Server("--config", str(file)) as server:

        def pids() -> dict[str, int | None]:
            (status,) = server.client.get("/admin/status").json()["models"]
            return {replica["name"]: replica["pid"] for replica in status["replicas"] if replica["fingerprint"]}

        def ask(text: str, **options: Any) -> Any:
            return server.client.post(CHAT, json=chat_body(text, model="pooled", **options))

        wait_for(lambda: len(pids()) == 2, 30, "both workers")
        before = pids()
        with ThreadPoolExecutor(8) as threads:
            poisoned = threads.submit(ask, poison)
            bystanders = [threads.submit(ask, f"say: {number}", temperature=0) for number in range(6)]
            response = poisoned.result()
            answers = [one.result() for one in bystanders]
        assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_crashed")
        assert [answer.status_code for answer in answers] == [200] * 6, [answer.text for answer in answers]
        after = pids()
        assert sum(after.get(name) == pid for name, pid in before.items()) == 1


def test_too_few_cells_fail_no_request() -> None:
    with Server("-m", "fake:n_ctx=600,short=300", "-np", "4", "-kvu") as server:
        server.chat("say: awake")
        before = server.workers()
        words = ["say: " + f"{number} " * 60 for number in range(6)]
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda text: server.chat(text)["choices"][0]["message"]["content"], words))
        assert answers == [text.removeprefix("say: ").rstrip() for text in words] or answers == [
            text.removeprefix("say: ") for text in words
        ]
        assert server.workers() == before
        server.wait_for_line("no free KV cells")
        too_long = server.client.post(CHAT, json=chat_body("say: " + "x" * 500))
        assert (too_long.status_code, too_long.json()["error"]["code"]) == (500, "no_cells")
        assert server.workers() == before


@full
def test_other_requests_survive_a_poisonous_one() -> None:
    """They run when the worker crashes. If all were retried together, the next crash would fail them too."""
    with Server("-m", "fake:delay=0.01", "-np", "8") as server:
        server.chat("say: awake")
        words = [f"say: {number} " + "word " * 20 for number in range(6)]
        with ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(server.client.post, CHAT, json=chat_body(text)) for text in words]
            poisoned = [threads.submit(server.client.post, CHAT, json=chat_body("crash: now")) for _ in range(2)]
            assert [one.result().status_code for one in poisoned] == [503, 503]
            answers = [one.result() for one in asking]
        assert [answer.status_code for answer in answers] == [200] * 6, [answer.text for answer in answers]
        contents = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
        assert [text.strip() for text in contents] == [text.removeprefix("say: ").strip() for text in words]
