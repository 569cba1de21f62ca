"""`/admin/cache`: what is kept, by model and tenant, and how it is cleared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.key_config import ADMIN, CHAT, KeyConfig, headers_of
from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full


def _kept(server: Server, **headers: str) -> dict[str, dict[str, Any]]:
    response = server.client.get("/admin/cache", headers=headers or ADMIN)
    assert response.status_code == 200, response.text
    return {model["model"]: model for model in response.json()["models"]}


def _tokens(model: dict[str, Any], tenant: str, tier: str) -> int:
    return sum(one[tier]["tokens"] for one in model["tenants"] if one["tenant"] == tenant)


def _ask(server: Server, name: str, text: str) -> None:
    body = chat_body(text, model="llama-small", max_tokens=2)
    assert server.client.post(CHAT, json=body, headers=headers_of(name)).status_code == 200


def test_an_admin_sees_what_is_kept_by_model_and_tenant(config: KeyConfig) -> None:
    config.keys["ben"] |= {"models": ["llama-*"], "tenant": "field"}
    with config.server() as server:
        assert {model["state"] for model in _kept(server).values()} == {"unloaded"}
        assert server.workers() == [], "looking loads nothing"
        _ask(server, "anna", "the gate is open" * 4)
        _ask(server, "ben", "the hay is dry" * 8)
        kept = _kept(server)
        assert kept["llama-small"]["state"] == "loaded"
        assert _tokens(kept["llama-small"], "", "cells") > 60
        assert _tokens(kept["llama-small"], "field", "cells") > 100
        assert kept["qwen"]["tenants"] == []


def test_only_an_admin_may_look_or_clear(config: KeyConfig) -> None:
    with config.server() as server:
        for headers, status in (({}, 401), (headers_of("anna"), 403)):
            assert server.client.get("/admin/cache", headers=headers).status_code == status
            assert server.client.post("/admin/cache/clear", json={}, headers=headers).status_code == status


def test_one_tenant_is_cleared_and_the_other_is_not(config: KeyConfig) -> None:
    config.keys["ben"] |= {"models": ["llama-*"], "tenant": "field"}
    with config.server() as server:
        _ask(server, "anna", "the gate is open" * 4)
        _ask(server, "ben", "the hay is dry" * 8)
        wait_for(lambda: _tokens(_kept(server)["llama-small"], "field", "host"), 20, "the write-back")
        body = {"model": "llama-small", "tenant": "field"}
        left = server.client.post("/admin/cache/clear", json=body, headers=ADMIN).json()["models"]
        assert [one["tenant"] for model in left for one in model["tenants"]] == [""]
        body = chat_body("the hay is dry" * 8, model="llama-small", max_tokens=1, cache_report=True)
        report = server.client.post(CHAT, json=body, headers=headers_of("ben")).json()["cache_report"]
        assert (sum(report["reused"].values()), report["reason"]) == (0, "new")
        everything = server.client.post("/admin/cache/clear", headers=ADMIN).json()["models"]
        assert not any(model["tenants"] for model in everything)
        assert server.client.post("/admin/cache/clear", json={"model": "none"}, headers=ADMIN).status_code == 404


@full
@pytest.mark.parametrize("layout", ["-kvu", "-no-kvu"])
def test_what_runs_is_not_cleared(layout: str) -> None:
    env = {"PADDOCK_CHECK_CACHE": "1"}
    with Server("-m", "fake:delay=0.02", layout, env=env) as server:
        body = chat_body("say: " + "the gate is open " * 12, stream=True)  # four seconds
        with server.client.stream("POST", CHAT, json=body) as response:
            stream = events(response)  # without the comments about a load
            next(stream)
            left = server.client.post("/admin/cache/clear").json()["models"][0]
            assert _tokens(left, "", "cells") > 50
            assert list(stream)[-1] == ("message", "[DONE]")
        answer = server.chat("say: again")
        assert answer["choices"][0]["message"]["content"] == "again"
