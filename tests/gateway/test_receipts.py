"""`receipt`: on every route that generates, whole or streamed, and only where it can be computed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from paddock.receipts import Checker, Receipt, compare, digest, text_digest, token_digest, without_receipt
from paddock.seeds import seed_of
from tests.server import Server, events

_SENT = {"deterministic": True, "receipt": True, "seed": 7}
_ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 5},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 5},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 5},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 5},
    "/completion": {"prompt": "Hello", "n_predict": 5},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:") as server:
        yield server


def _reply(server: Server, path: str, **more: Any) -> dict[str, Any]:
    response = server.client.post(path, json=_ROUTES[path] | _SENT | more)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _streamed(server: Server, path: str, **more: Any) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json=_ROUTES[path] | _SENT | {"stream": True} | more) as response:
        assert response.status_code == 200
        return [json.loads(data) for _, data in events(response) if data != "[DONE]"]


@pytest.mark.parametrize("path", _ROUTES)
def test_a_whole_reply(server: Server, path: str) -> None:
    reply = _reply(server, path)
    receipt = msgspec.convert(reply["receipt"], Receipt)
    assert receipt.reply_sha256 == digest(without_receipt(reply))
    assert receipt.request.endpoint == path
    assert receipt.request.body.items() >= (_ROUTES[path] | {"seed": 7, "deterministic": True}).items()
    assert (receipt.seed.value, receipt.seed.rule, receipt.previous, receipt.signature) == (7, "request", None, None)
    assert receipt.sampling.items() >= {"temperature": 0.8, "top_k": 40, "max_tokens": 5}.items()
    (answer,) = receipt.answers
    assert answer.tokens_sha256 == token_digest(answer.tokens)
    assert len(answer.tokens) == 5
    assert Checker().check(json.dumps(reply).encode()).problems == []


@pytest.mark.parametrize(
    ("path", "more"),
    [
        *((path, {}) for path in _ROUTES),
        *((path, {"stream_options": {"include_usage": True}}) for path in ("/v1/chat/completions", "/v1/completions")),
    ],
)
def test_the_end_of_a_stream(server: Server, path: str, more: dict[str, Any]) -> None:
    found = [
        receipt
        for event in _streamed(server, path, **more)
        for receipt in (event.get("receipt"), event.get("response", {}).get("receipt"))
        if receipt is not None
    ]
    (receipt,) = [msgspec.convert(one, Receipt) for one in found]
    assert receipt.reply_sha256 is None
    whole = msgspec.convert(_reply(server, path)["receipt"], Receipt)
    assert compare(whole, receipt).is_identical
    assert not compare(whole, receipt).identity
    assert whole.request == receipt.request


def test_without_asking_there_is_none(server: Server) -> None:
    for path in _ROUTES:
        assert "receipt" not in _reply(server, path, receipt=False)
        assert "receipt" not in _reply(server, path, receipt=None)
        assert not any("receipt" in event for event in _streamed(server, path, receipt=None))


@pytest.mark.parametrize("path", _ROUTES)
def test_it_needs_a_deterministic_request(server: Server, path: str) -> None:
    for deterministic in (None, False):
        body = _ROUTES[path] | {"receipt": True, "deterministic": deterministic}
        response = server.client.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert "deterministic: true" in error["message"]
        assert error.get("param", "receipt") == "receipt"
    response = server.client.post(path, json=_ROUTES[path] | _SENT | {"receipt": "yes"})
    assert response.status_code == 400
    assert "receipt" in response.text


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"best_of": 3}),
        ("/completion", {"prompt": ["a", "b"]}),
        ("/completion", {"n_cmpl": 2}),
        ("/completion", {"t_max_predict_ms": 5}),
    ],
)
def test_answers_that_a_receipt_cannot_cover(server: Server, path: str, more: dict[str, Any]) -> None:
    response = server.client.post(path, json=_ROUTES[path] | _SENT | more)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "receipt")


def test_several_answers(server: Server) -> None:
    reply = _reply(server, "/v1/completions", prompt=["Hello", "Goodbye"], n=2)
    receipt = msgspec.convert(reply["receipt"], Receipt)
    assert [answer.seed for answer in receipt.answers] == [7, 8, 7, 8]
    assert [answer.text_sha256 for answer in receipt.answers] == [
        text_digest(choice["text"]) for choice in reply["choices"]
    ]
    assert len({answer.prompt_sha256 for answer in receipt.answers}) == 2


def test_what_is_not_in_the_request(server: Server) -> None:
    """Neither what does not decide the answer, nor a field that the server does not know."""
    more = {"user": "anna", "metadata": {"a": "b"}, "my_password": "secret", "timings_per_token": True}
    reply = _reply(server, "/v1/chat/completions", **more)
    names = {"model", "messages", "max_tokens", "deterministic", "seed", "template_date"}
    assert reply["receipt"]["request"]["body"].keys() == names
    assert "secret" not in json.dumps(reply)


def test_the_rule_of_the_seed(server: Server) -> None:
    def seed(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = _reply(server, "/v1/completions", **more)["receipt"]["seed"]
        return found

    assert seed(seed=None, job_id="job-1") == {"value": seed_of("job-1"), "rule": "job_id", "job_id": "job-1"}
    assert seed(job_id="job-1") == {"value": 7, "rule": "request", "job_id": "job-1"}
    random = seed(seed=-1)
    assert (random["rule"], random["job_id"]) == ("random", None)
    again = _reply(server, "/v1/completions", seed=random["value"])["receipt"]
    assert again["seed"]["value"] == random["value"]


def test_the_defaults_of_the_model_are_in_the_request() -> None:
    with Server("-m", "fake:", "--temp", "0.3", "-n", "4", "--seed", "9", "--deterministic") as server:
        response = server.client.post("/completion", json={"prompt": "Hello", "receipt": True})
        receipt = response.json()["receipt"]
    assert receipt["request"]["body"].items() >= {"temperature": 0.3, "n_predict": 4, "seed": 9}.items()
    assert receipt["sampling"].items() >= {"temperature": 0.3, "max_tokens": 4}.items()
    assert receipt["seed"]["rule"] == "default"
