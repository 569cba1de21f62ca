"""The usage of API keys, and a reload of the keys, over HTTP."""

from __future__ import annotations

import json
import os
import signal

import httpx

from tests.gateway.key_config import ADMIN, CHAT, KeyConfig, chat, headers_of, refusal_of, usage_of
from tests.server import Server, chat_body, events, wait_for


def test_usage_is_the_sum_of_the_answers(config: KeyConfig) -> None:
    with config.server() as server:
        reported = [chat(server, "anna", "small", n=2).json()["usage"] for _ in range(2)]
        body = {"model": "small", "prompt": ["one", "two"], "max_tokens": 3}
        reported.append(server.client.post("/v1/completions", json=body, headers=headers_of("anna")).json()["usage"])
        options = {"stream": True, "stream_options": {"include_usage": True}}
        with server.client.stream(
            "POST", CHAT, json=chat_body("say: abc", model="small", **options), headers=headers_of("anna")
        ) as response:
            reported.append(json.loads(list(events(response))[-2][1])["usage"])
        usage = {
            "key": "anna",
            "requests": 4,
            "errors": 0,
            "rate_limited": 0,
            "prompt_tokens": sum(one["prompt_tokens"] for one in reported),
            "cached_tokens": sum(one["prompt_tokens_details"]["cached_tokens"] for one in reported),
            "completion_tokens": sum(one["completion_tokens"] for one in reported),
        }
        wait_for(lambda: usage_of(server, "anna") == usage, 20, "the stream to be counted")
        assert usage["cached_tokens"] > 0, "the second prompt is the same as the first"
        chat(server, "anna", "qwen")
        own = server.client.get("/v1/usage", headers=headers_of("anna")).json()
        assert own.pop("since") == server.client.get("/admin/usage", headers=ADMIN).json()["since"]
        assert own == usage | {"requests": 5, "errors": 1}
        refusal_of(server.client.get("/admin/usage", headers=headers_of("anna")), 403, "permission_denied")
        assert usage_of(server, "ben")["requests"] == 0


def test_usage_of_unfinished_answers(config: KeyConfig) -> None:
    with config.server() as server:
        body = chat_body("say: " + "x" * 3000, model="slow", stream=True)
        with server.client.stream("POST", CHAT, json=body, headers=headers_of("ben")) as response:
            stream = events(response)
            for _ in range(5):
                next(stream)
        wait_for(lambda: usage_of(server, "ben")["completion_tokens"] >= 4, 20, "the tokens to be counted")
        assert usage_of(server, "ben")["prompt_tokens"] > 3000
        assert usage_of(server, "ben")["errors"] == 0, "a disconnect is not an error"
        with server.client.stream("POST", CHAT, json=body, headers=headers_of("ben")) as response:
            stream = events(response)
            next(stream)
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            assert list(stream)[-1][0] == "error"
        wait_for(lambda: usage_of(server, "ben")["errors"] == 1, 20, "the error to be counted")


def test_usage_without_keys(fake_server: Server) -> None:
    fake_server.chat("say: x")
    (account,) = fake_server.client.get("/admin/usage").json()["keys"]
    assert account["key"] == ""
    assert account["requests"] > 0
    own = fake_server.client.get("/v1/usage").json()
    assert own["completion_tokens"] == account["completion_tokens"]


def _reload(server: Server) -> httpx.Response:
    return server.client.post("/admin/reload", headers=ADMIN)


def test_a_reload_replaces_the_keys(config: KeyConfig) -> None:
    config.keys["anna"]["requests_per_minute"] = 100
    with config.server() as server:
        assert chat(server, "anna", "small").headers["x-ratelimit-limit-requests"] == "100"
        body = chat_body("say: " + "x" * 50, model="slow", stream=True)
        with server.client.stream("POST", CHAT, json=body, headers=headers_of("ben")) as response:
            stream = events(response)
            next(stream)
            del config.keys["ben"]
            config.keys["anna"] |= {"requests_per_minute": 1, "models": ["qwen"]}
            config.keys["cleo"] = {"key": "cleo-key"}
            config.write()
            done = _reload(server).json()
            assert (done["changed"], done["restart_needed"]) == ([], [])
            refusal_of(chat(server, "ben", "slow"), 401, "invalid_api_key")
            assert list(stream)[-1][1] == "[DONE]", "a running request continues"
        refusal_of(chat(server, "anna", "small"), 403, "permission_denied")
        refusal_of(chat(server, "anna", "slow"), 429, "rate_limit_exceeded")
        assert chat(server, "cleo", "small").status_code == 200
        assert usage_of(server, "ben")["completion_tokens"] > 0, "the usage of a removed key is kept"
        config.keys["dora"] = {"key": "dora-key"}
        config.write()
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: chat(server, "dora", "small").status_code == 200, 20, "the new key")


def test_invalid_keys_change_nothing(config: KeyConfig) -> None:
    with config.server() as server:
        good = config.keys
        for broken in (
            {**good, "cleo": {"key": "boss"}},
            {**good, "cleo": {"key": "cleo-key", "weight": 0}},
            {**good, "api-key-0 ": {"key": "cleo-key"}},
            {},
        ):
            config.keys = broken
            config.write()
            message = refusal_of(_reload(server), 400, "invalid_request")
            assert "nothing was changed" in message
            assert "boss" not in message.replace("'boss'", ""), "errors show names, not keys"
            assert "cleo-key" not in message
            assert chat(server, "anna", "small").status_code == 200
            refusal_of(chat(server, "cleo", "small"), 401, "invalid_api_key")


def test_the_log_shows_no_key(config: KeyConfig) -> None:
    with config.server() as server:
        chat(server, "anna", "small")
        chat(server, "wrong", "small")
        server.stop()
        assert not any("anna-key" in line or "wrong-key" in line or "boss" in line for line in server.output)
