"""Keys over real HTTP, with the fake engine: what each may do, how much, and what it has done."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import Request

from paddock.config import KeySettings, ServerSettings
from paddock.errors import AuthenticationError, StartupError, TooManyFailures
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.keys import hashed_keys, read_keys
from paddock.gateway.auth.usage import UsageBook
from paddock.types import Origin
from tests.server import Server, chat_body, events, wait_for

CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer boss"}


class Place:
    """A configuration with three models and some keys."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config.json"
        self.models: dict[str, Any] = {
            "llama-small": {"path": "fake:", "aliases": ["small"]},
            "qwen": {"path": "fake:delay=0.02", "aliases": ["slow"]},
            "vectors": {"path": "fake:", "embedding": True},
        }
        self.keys: dict[str, Any] = {
            "boss": {"key": "boss", "admin": True},
            "anna": {"hash": f"sha256:{hashlib.sha256(b'anna-key').hexdigest()}", "models": ["llama-*", "vectors"]},
            "ben": {"key": "ben-key", "models": ["slow"]},
        }

    def write(self) -> None:
        server = {"keys": self.keys}
        manager = {"models": self.models, "spare_worker": False}
        self.file.write_text(json.dumps({"server": server, "model_manager": manager}))

    def server(self) -> Server:
        self.write()
        return Server("--config", str(self.file))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Place(tmp_path_factory.mktemp("keys")).server() as server:
        yield server


def _as(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key"}


def _chat(server: Server, name: str, model: str, text: str = "say: hi", **options: Any) -> httpx.Response:
    return server.client.post(CHAT, json=chat_body(text, model=model, **options), headers=_as(name))


def _refused(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    message: str = error["message"]
    return message


def _usage(server: Server, name: str) -> dict[str, Any]:
    accounts = server.client.get("/admin/usage", headers=ADMIN).json()["keys"]
    return next(account for account in accounts if account["key"] == name)


# ── what a key may do ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_asks_the_models_it_may(shared: Server) -> None:
    for model in ("llama-small", "small", "llama-small.gguf"):
        assert _chat(shared, "anna", model).status_code == 200
    assert "'qwen'" in _refused(_chat(shared, "anna", "qwen"), 403, "permission_denied")
    assert "'llama-small'" in _refused(_chat(shared, "ben", "small"), 403, "permission_denied")
    assert _chat(shared, "ben", "qwen", max_tokens=1).status_code == 200, "an alias stands for the model"
    _refused(_chat(shared, "anna", "none"), 404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/responses/input_tokens", {"input": "x"}),
        ("/v1/messages", chat_body("x", max_tokens=1)),
        ("/v1/messages/count_tokens", chat_body("x")),
        ("/completion", {"prompt": "x"}),
        ("/infill", {"input_prefix": "x", "input_suffix": "y"}),
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", chat_body("x")),
        ("/v1/embeddings", {"input": "x"}),
        ("/embedding", {"content": "x"}),
        ("/rerank", {"query": "x", "documents": ["y"]}),
    ],
)
def test_no_route_asks_another_model(shared: Server, path: str, body: dict[str, Any]) -> None:
    response = shared.client.post(path, json={**body, "model": "llama-small"}, headers=_as("ben"))
    assert response.status_code == 403, response.text
    assert "'llama-small'" in response.json()["error"]["message"]


def test_looking_shows_what_may_be_asked(shared: Server) -> None:
    names = {
        name: [card["id"] for card in shared.client.get("/v1/models", headers=headers).json()["data"]]
        for name, headers in (("anna", _as("anna")), ("ben", _as("ben")), ("boss", ADMIN))
    }
    assert names == {
        "anna": ["llama-small", "vectors"],
        "ben": ["qwen"],
        "boss": ["llama-small", "qwen", "vectors"],
    }
    for path in ("/v1/models/qwen", "/props?model=qwen", "/lora-adapters?model=qwen"):
        assert shared.client.get(path, headers=_as("ben")).status_code == 200
        _refused(shared.client.get(path, headers=_as("anna")), 403, "permission_denied")
    with shared.client.stream("GET", "/models/sse", headers=_as("ben")) as response:
        assert json.loads(next(events(response))[1])["model"] == "qwen"


def test_the_openai_package_with_a_key(shared: Server) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{shared.url}/v1", api_key=key, max_retries=0)

    def ask(asking: openai.OpenAI, model: str) -> Any:
        return asking.chat.completions.create(model=model, messages=[{"role": "user", "content": "say: hi"}])

    with client("anna-key") as anna, client("wrong") as wrong:
        assert ask(anna, "small").choices[0].message.content == "hi"
        assert [model.id for model in anna.models.list()] == ["llama-small", "vectors"]
        assert anna.embeddings.create(model="vectors", input="x").usage.prompt_tokens > 0
        with pytest.raises(openai.PermissionDeniedError, match="qwen"):
            ask(anna, "qwen")
        with pytest.raises(openai.AuthenticationError):
            ask(wrong, "small")


def test_an_anthropic_client_is_refused_in_its_own_words(shared: Server) -> None:
    body = chat_body("say: hi", model="qwen", max_tokens=2)
    response = shared.client.post("/v1/messages", json=body, headers={"x-api-key": "anna-key"})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
    response = shared.client.post("/v1/messages", json=body, headers={"x-api-key": "ben-key"})
    assert response.status_code == 200


# ── how much ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_by_the_minute(place: Place) -> None:
    place.keys["anna"]["requests_per_minute"] = 2
    with place.server() as server:
        left = [_chat(server, "anna", "small").headers["x-ratelimit-remaining-requests"] for _ in range(2)]
        assert left == ["1", "0"]
        response = _chat(server, "anna", "small")
        assert "2 requests per minute" in _refused(response, 429, "rate_limit_exceeded")
        assert response.headers["x-ratelimit-limit-requests"] == "2"
        assert 1 <= int(response.headers["retry-after"]) <= 30
        assert "x-ratelimit-limit-tokens" not in response.headers
        assert server.client.get("/v1/models", headers=_as("anna")).status_code == 200, "looking is free"
        assert _chat(server, "ben", "slow", max_tokens=1).status_code == 200, "others are not meant"
        usage = _usage(server, "anna")
        assert (usage["requests"], usage["errors"], usage["rate_limited"]) == (3, 1, 1)


def test_tokens_by_the_minute(place: Place) -> None:
    place.keys["anna"]["tokens_per_minute"] = 3
    with place.server() as server:
        # A stream that waits for a load begins before anybody knows how long its prompt is.
        boss = {"authorization": "Bearer boss"}
        assert server.client.post(CHAT, json=chat_body("say: hi", model="small"), headers=boss).status_code == 200
        with server.client.stream(
            "POST", CHAT, json=chat_body("say: hello", model="small", stream=True), headers=_as("anna")
        ) as response:
            assert response.headers["x-ratelimit-limit-tokens"] == "3"
            assert response.headers["x-ratelimit-remaining-tokens"] == "0", "the prompt has been charged"
            response.read()
        wait_for(lambda: _usage(server, "anna")["completion_tokens"], 10, "the answer to be counted, after its end")
        response = _chat(server, "anna", "small")
        assert "3 tokens per minute" in _refused(response, 429, "rate_limit_exceeded")
        used = _usage(server, "anna")["prompt_tokens"] + _usage(server, "anna")["completion_tokens"]
        wait = (used - 3 + 1) * 20
        assert wait - 60 < int(response.headers["retry-after"]) <= wait, "what was used beyond the limit is waited for"
        body = {"model": "vectors", "input": "hello"}
        _refused(server.client.post("/v1/embeddings", json=body, headers=_as("anna")), 429, "rate_limit_exceeded")


def test_many_answers_are_reserved_for_before_they_run(place: Place) -> None:
    place.keys["anna"] |= {"tokens_per_minute": 100, "concurrent_requests": 8}
    asked: list[tuple[str, dict[str, Any]]] = [
        (CHAT, chat_body("say: hello", n=8, max_tokens=50)),
        ("/v1/completions", {"prompt": ["say: hello"] * 4, "n": 2, "max_tokens": 50}),
        ("/v1/completions", {"prompt": "say: hello", "n": 1, "best_of": 8, "max_tokens": 50}),
        ("/completion", {"prompt": "say: hello", "n_cmpl": 8, "n_predict": 50}),
        (CHAT, chat_body("say: hello", n=2)),
    ]
    with place.server() as server:
        for path, body in asked:
            response = server.client.post(path, json={**body, "model": "small"}, headers=_as("anna"))
            assert "this key may use 100 per minute" in _refused(response, 400, "invalid_request")
        used = _usage(server, "anna")
        assert (used["prompt_tokens"], used["completion_tokens"]) == (0, 0)
        many = {"model": "small", "prompt": ["x"] * 9, "n": 128, "max_tokens": 1}
        response = server.client.post("/v1/completions", json=many, headers=ADMIN)
        assert "1152 answers; the limit is 1024" in _refused(response, 400, "invalid_request")
        assert _chat(server, "anna", "small", "say: hi", max_tokens=5).status_code == 200, "nothing is still reserved"


def test_answers_count_as_requests_at_once(place: Place) -> None:
    place.keys["anna"]["concurrent_requests"] = 2
    with place.server() as server:
        assert "this key may have 2" in _refused(_chat(server, "anna", "small", n=3), 400, "invalid_request")
        assert _chat(server, "anna", "small", n=2).status_code == 200
        assert _chat(server, "anna", "small", n=2).status_code == 200


def test_vectors_that_nobody_waits_for_are_charged(place: Place) -> None:
    place.models["vectors"]["path"] = "fake:delay=0.02"
    text, count = "hello, world " * 20, 2000
    total = len(text) * count
    body = json.dumps({"model": "vectors", "input": [text] * count}).encode()

    def is_under_way() -> bool:
        slots = server.client.get("/slots", params={"model": "vectors"}, headers=ADMIN).json()
        return bool(slots) and 0 < slots[0]["n_prompt_tokens"] < total

    with place.server() as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port or 80)) as client:
            head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anna-key\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(is_under_way, 20, "some inputs to be computed")
        wait_for(lambda: _usage(server, "anna")["prompt_tokens"], 20, "the request to be over")
        assert 0 < _usage(server, "anna")["prompt_tokens"] < total


def test_vectors_are_charged_too(place: Place) -> None:
    place.keys["anna"]["tokens_per_minute"] = 3
    with place.server() as server:
        body = {"model": "vectors", "input": "hello, world"}
        response = server.client.post("/v1/embeddings", json=body, headers=_as("anna"))
        assert response.headers["x-ratelimit-remaining-tokens"] == "0"
        assert _usage(server, "anna")["prompt_tokens"] == response.json()["usage"]["prompt_tokens"] > 3
        _refused(_chat(server, "anna", "small"), 429, "rate_limit_exceeded")


def test_requests_at_once_are_counted_however_they_end(place: Place) -> None:
    place.keys["ben"]["concurrent_requests"] = 1
    long = chat_body("say: " + "x" * 3000, model="slow", stream=True)
    with place.server() as server:

        def is_free() -> bool:
            return _chat(server, "ben", "slow", "say: x", max_tokens=1).status_code == 200

        with server.client.stream("POST", CHAT, json=long, headers=_as("ben")) as response:
            stream = events(response)
            next(stream)
            refusal = _chat(server, "ben", "slow")
            assert "1 concurrent requests" in _refused(refusal, 429, "rate_limit_exceeded")
            assert refusal.headers["retry-after"] == "1"
        wait_for(is_free, 20, "a stream that was left to be over")

        with server.client.stream("POST", CHAT, json=long, headers=_as("ben")) as response:
            stream = events(response)
            next(stream)
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            assert "worker_crashed" in list(stream)[-1][1]
        wait_for(is_free, 20, "a stream that broke to be over")

        with pytest.raises(httpx.ReadTimeout):
            body = {**long, "stream": False}
            httpx.post(f"{server.url}{CHAT}", json=body, headers=_as("ben"), timeout=1)
        wait_for(is_free, 20, "one who did not wait for the answer to be over")

        _refused(server.client.post(CHAT, content=b"{", headers=_as("ben")), 400, "invalid_json")
        assert is_free(), "what was refused is over at once"


def test_the_openai_package_waits_as_it_is_told(place: Place) -> None:
    place.keys["anna"]["requests_per_minute"] = 1
    with place.server() as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="anna-key", max_retries=0) as client:
            client.completions.create(model="small", prompt="x", max_tokens=1)
            with pytest.raises(openai.RateLimitError, match="1 requests per minute"):
                client.completions.create(model="small", prompt="x", max_tokens=1)


# ── what it has done ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_usage_is_what_the_answers_say(place: Place) -> None:
    with place.server() as server:
        told = [_chat(server, "anna", "small", n=2).json()["usage"] for _ in range(2)]
        body = {"model": "small", "prompt": ["one", "two"], "max_tokens": 3}
        told.append(server.client.post("/v1/completions", json=body, headers=_as("anna")).json()["usage"])
        options = {"stream": True, "stream_options": {"include_usage": True}}
        with server.client.stream(
            "POST", CHAT, json=chat_body("say: abc", model="small", **options), headers=_as("anna")
        ) as response:
            told.append(json.loads(list(events(response))[-2][1])["usage"])
        usage = _usage(server, "anna")
        assert usage == {
            "key": "anna",
            "requests": 4,
            "errors": 0,
            "rate_limited": 0,
            "prompt_tokens": sum(one["prompt_tokens"] for one in told),
            "cached_tokens": sum(one["prompt_tokens_details"]["cached_tokens"] for one in told),
            "completion_tokens": sum(one["completion_tokens"] for one in told),
        }
        assert usage["cached_tokens"] > 0, "the second asked the same as the first"
        _chat(server, "anna", "qwen")
        own = server.client.get("/v1/usage", headers=_as("anna")).json()
        assert own.pop("since") == server.client.get("/admin/usage", headers=ADMIN).json()["since"]
        assert own == usage | {"requests": 5, "errors": 1}
        _refused(server.client.get("/admin/usage", headers=_as("anna")), 403, "permission_denied")
        assert _usage(server, "ben")["requests"] == 0


def test_what_is_broken_off_is_counted_too(place: Place) -> None:
    with place.server() as server:
        body = chat_body("say: " + "x" * 3000, model="slow", stream=True)
        with server.client.stream("POST", CHAT, json=body, headers=_as("ben")) as response:
            stream = events(response)
            for _ in range(5):
                next(stream)
        wait_for(lambda: _usage(server, "ben")["completion_tokens"] >= 4, 20, "it to be counted")
        assert _usage(server, "ben")["prompt_tokens"] > 3000
        assert _usage(server, "ben")["errors"] == 0, "leaving is no error"
        with server.client.stream("POST", CHAT, json=body, headers=_as("ben")) as response:
            stream = events(response)
            next(stream)
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            assert list(stream)[-1][0] == "error"
        wait_for(lambda: _usage(server, "ben")["errors"] == 1, 20, "the error to be counted")


def test_usage_without_keys(fake_server: Server) -> None:
    fake_server.chat("say: x")
    (account,) = fake_server.client.get("/admin/usage").json()["keys"]
    assert account["key"] == ""
    assert account["requests"] > 0
    own = fake_server.client.get("/v1/usage").json()
    assert own["completion_tokens"] == account["completion_tokens"]


# ── reading them again ───────────────────────────────────────────────────────────────────────────────────────────────


def _reload(server: Server) -> httpx.Response:
    return server.client.post("/admin/reload", headers=ADMIN)


def test_keys_are_read_again(place: Place) -> None:
    place.keys["anna"]["requests_per_minute"] = 100
    with place.server() as server:
        assert _chat(server, "anna", "small").headers["x-ratelimit-limit-requests"] == "100"
        body = chat_body("say: " + "x" * 50, model="slow", stream=True)
        with server.client.stream("POST", CHAT, json=body, headers=_as("ben")) as response:
            stream = events(response)
            next(stream)
            del place.keys["ben"]
            place.keys["anna"] |= {"requests_per_minute": 1, "models": ["qwen"]}
            place.keys["cleo"] = {"key": "cleo-key"}
            place.write()
            done = _reload(server).json()
            assert (done["changed"], done["restart_needed"]) == ([], [])
            _refused(_chat(server, "ben", "slow"), 401, "invalid_api_key")
            assert list(stream)[-1][1] == "[DONE]", "who has been let in stays"
        _refused(_chat(server, "anna", "small"), 403, "permission_denied")
        _refused(_chat(server, "anna", "slow"), 429, "rate_limit_exceeded")
        assert _chat(server, "cleo", "small").status_code == 200
        assert _usage(server, "ben")["completion_tokens"] > 0, "what was used is not forgotten"
        place.keys["dora"] = {"key": "dora-key"}
        place.write()
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: _chat(server, "dora", "small").status_code == 200, 20, "the new key")


def test_a_broken_table_changes_nothing(place: Place) -> None:
    with place.server() as server:
        good = place.keys
        for broken in (
            {**good, "cleo": {"key": "boss"}},
            {**good, "cleo": {"key": "cleo-key", "weight": 0}},
            {**good, "api-key-0 ": {"key": "cleo-key"}},
            {},
        ):
            place.keys = broken
            place.write()
            message = _refused(_reload(server), 400, "invalid_request")
            assert "nothing was changed" in message
            assert "boss" not in message.replace("'boss'", ""), "names may be told, keys may not"
            assert "cleo-key" not in message
            assert _chat(server, "anna", "small").status_code == 200
            _refused(_chat(server, "cleo", "small"), 401, "invalid_api_key")


def test_keys_are_not_told(place: Place) -> None:
    with place.server() as server:
        _chat(server, "anna", "small")
        _chat(server, "wrong", "small")
        server.stop()
        assert not any("anna-key" in line or "wrong-key" in line or "boss" in line for line in server.output)


# ── reading them at all ──────────────────────────────────────────────────────────────────────────────────────────────


def test_where_keys_come_from(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\n  third \n\n")
    settings = ServerSettings(
        api_keys=["first", "zweiter Schlüssel"],
        api_key_file=file,
        keys={
            "anna": KeySettings(key="anna-key", tenant="acme", weight=2, priority="batch"),
            "ben": KeySettings(hash="sha256:" + "0" * 64, share_prefixes=False),
            "cleo": KeySettings(key="cleo-key", tenant="acme", share_prefixes=False, admin=True),
        },
    )
    keys = {key.caller.name: key for key in read_keys(settings)}
    assert list(keys) == ["api-key-1", "api-key-2", "api-key-3", "anna", "ben", "cleo"]
    assert [key.caller.admin for key in keys.values()] == [True, True, True, False, False, True]
    assert keys["api-key-3"].digest == hashlib.sha256(b"third").digest()
    assert keys["ben"].digest == bytes(32)
    assert keys["anna"].caller.origin == Origin("anna", "acme", 2.0, batch=True)
    tenants = [key.caller.origin.tenant for key in keys.values()]
    assert tenants == ["", "", "", "acme", "/ben", "acme/cleo"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"api_keys": ["a", "a"]}, "'api-key-1' and 'api-key-2' are the same"),
        ({"api_keys": ["a"], "keys": {"anna": {"key": "a"}}}, "'api-key-1' and 'anna' are the same"),
        ({"api_keys": ["a"], "keys": {"api-key-1": {"key": "b"}}}, "two API keys are named 'api-key-1'"),
        ({"api_keys": [""]}, "empty"),
        ({"api_keys": ["a", " b"]}, "'api-key-2' starts or ends with a space"),
        ({"keys": {"anna": {"key": "b\n"}}}, "'anna' starts or ends with a space"),
    ],
)
def test_keys_that_cannot_be(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(StartupError, match=problem):
        read_keys(ServerSettings.model_validate(settings))


def test_a_file_without_keys_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(StartupError, match="no key in the API key file"):
        read_keys(ServerSettings(api_key_file=tmp_path / "keys"))


def test_keys_in_any_script(tmp_path: Path) -> None:
    with Server("-m", "fake:", "--api-key", "schlüssel,ключ") as server:
        for key in ("schlüssel", "ключ"):
            headers = {b"authorization": f"Bearer {key}".encode()}
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        assert server.client.get("/v1/models", headers={"x-api-key": "schl"}).status_code == 401


def _hash(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _request(key: str, address: str = "10.0.0.9") -> Request:
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "client": (address, 1),
        "headers": [(b"authorization", f"Bearer {key}".encode())], "endpoint": "endpoint",
    }  # fmt: skip
    return Request(scope)


def _gate(keys: dict[str, Any], clock: Callable[[], float] = lambda: 0.0) -> Gate:
    gate = Gate(read_keys(ServerSettings.model_validate({"keys": keys})), UsageBook(), clock)
    gate.guard({"endpoint": "key"})
    return gate


async def _let_in(gate: Gate, key: str, address: str = "10.0.0.9") -> bool:
    try:
        await gate(_request(key, address))
    except AuthenticationError:
        return False
    return True


def test_a_key_works_until_it_expires_and_both_work_while_it_is_replaced() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC).timestamp()]
    old = {"hash": _hash("old"), "expires_at": "2026-01-02T00:00:00Z"}
    gate = _gate({"anna": {"hash": _hash("new"), "expires_at": "2026-01-03T01:00:00+01:00", "previous": [old]}},
                 lambda: now[0])  # fmt: skip
    caller = read_keys(ServerSettings.model_validate({"keys": {"anna": {"hash": _hash("new")}}}))[0].caller

    def who() -> list[bool]:
        return [asyncio.run(_let_in(gate, key)) for key in ("old", "new", "other")]

    assert who() == [True, True, False]
    now[0] += 86400
    assert who() == [False, True, False]
    assert gate.still_admits(caller)
    now[0] += 86400
    assert who() == [False, False, False]
    assert not gate.still_admits(caller), "what is being watched ends with the key"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="timezone"):
        ServerSettings.model_validate({"keys": {"a": {"key": "a-key", "expires_at": "2026-01-02T00:00:00"}}})


def test_an_address_that_guesses_has_to_wait_and_others_do_not() -> None:
    async def scenario() -> None:
        gate = _gate({"anna": {"key": "right"}})
        assert await _let_in(gate, "right", "10.0.0.1")
        for address in ("10.0.0.1", "10.0.0.2"):
            for _ in range(10):
                assert not await _let_in(gate, "wrong", address)
            with pytest.raises(TooManyFailures) as refused:
                await gate(_request("wrong", address))
            assert refused.value.retry_after is not None and 0 < refused.value.retry_after <= 6
        assert await _let_in(gate, "right", "10.0.0.1"), "who has shown a right key is not locked out by others"
        with pytest.raises(TooManyFailures):
            await gate(_request("right", "10.0.0.2"))
        assert await _let_in(gate, "right", "10.0.0.3")

    asyncio.run(scenario())


def test_hashed_keys_do_the_same_and_tell_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("from-a-file\n")
    settings = ServerSettings.model_validate({
        "api_keys": ["plain-one"], "api_key_file": str(file),
        "keys": {"anna": {"key": "anna-key", "models": ["x"], "requests_per_minute": 3,
                          "previous": [{"key": "anna-old", "expires_at": "2030-01-01T00:00:00Z"}]}},
    })  # fmt: skip
    hashed = ServerSettings(keys=hashed_keys(settings))
    assert sorted(map(str, read_keys(hashed))) == sorted(map(str, read_keys(settings)))
    written = hashed.model_dump_json()
    assert not [key for key in ("plain-one", "from-a-file", "anna-key", "anna-old") if key in written]
