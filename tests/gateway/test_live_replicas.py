"""`GET /live` over HTTP: the replicas of a model, and where its prefixes are."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.gateway.live_viewer import CHAT, Viewer, busy_slots, write_config
from tests.server import Server, alive, chat_body, events, wait_for
from tests.tiers import full

SYSTEM = "You look after the horses of this paddock. " * 12


def replicas(models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {replica["name"]: replica for replica in models["pooled"]["replicas"]}


def ask(server: Server, text: str, system: str = SYSTEM, key: str = "", **options: Any) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"say: {text}"}]
    body = {"model": "pooled", "messages": messages, **options}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = server.client.post(CHAT, json=body, headers=headers)
    assert response.status_code == 200, response.text


def pool(folder: Path, replicas: Any, **server: Any) -> Server:
    models = {"pooled": {"path": "fake:delay=0.005", "replicas": replicas, "parallel": 2}}
    return Server("--config", write_config(folder, server=server, model_manager={"models": models}))


def test_workers_and_one_that_is_killed(tmp_path: Path) -> None:
    with pool(tmp_path, 2) as server, Viewer(server) as viewer:
        before = replicas(viewer.until(lambda _models: True))
        assert [one["state"] for one in before.values()] == ["unloaded"] * 2
        assert server.workers() == [], "looking loads nothing"
        assert server.client.post("/models/load", json={"model": "pooled"}).status_code == 200
        viewer.until(lambda models: all(one["state"] == "ready" for one in replicas(models).values()))
        body = chat_body("say: " + "x" * 2000, model="pooled", stream=True)
        with server.client.stream("POST", CHAT, json=body) as response:
            stream = events(response)
            next(stream)
            models = viewer.until(lambda models: any(one["running"] for one in replicas(models).values()))
            (busy,) = [one for one in replicas(models).values() if one["running"]]
            assert (busy["kind"], busy["running"], busy["waiting"], busy["slots"]) == ("worker", 1, 0, 2)
            assert models["pooled"]["waiting"] == 0
            models = viewer.until(lambda models: len(models["pooled"]["slots"]) == 4 and busy_slots(models["pooled"]))
            assert [slot["id"] for slot in models["pooled"]["slots"]] == [0, 1, 2, 3]
        viewer.until(lambda models: not any(one["running"] for one in replicas(models).values()))
        for text in ("one", "two"):
            ask(server, text)
        found = viewer.prefixes("pooled", lambda found: any(one["prompts"] == 2 for one in found["prefixes"]))
        (shared,) = [one for one in found["prefixes"] if one["prompts"] == 2]
        assert shared["text"].startswith("system You look after the horses")
        assert (shared["parent"], shared["start"], shared["characters"]) == (None, 0, len("system " + SYSTEM))
        below = [one for one in found["prefixes"] if one["parent"] == shared["id"]]
        assert [one["text"] for one in below] == ["user say: two", "user say: one"], "the newest first"
        (home,) = shared["held"]
        assert shared["held"] == {home: 1.0}
        models = viewer.until(lambda models: replicas(models)[home]["cached_tokens"])
        totals = models["pooled"]["totals"]
        assert totals["cached_tokens"] == sum(one["cached_tokens"] for one in replicas(models).values())
        assert totals["answered_tokens"] == sum(one["answered_tokens"] for one in replicas(models).values()) > 0

        status = server.client.get("/admin/status").json()["models"][0]["replicas"]
        (pid,) = [one["pid"] for one in status if one["name"] == home]
        os.kill(pid, signal.SIGKILL)
        models = viewer.until(lambda models: replicas(models)[home]["state"] == "down")
        assert "SIGKILL" in replicas(models)[home]["reason"]
        assert replicas(models)[home]["running"] == 0
        (other,) = [one for name, one in replicas(models).items() if name != home]
        assert (other["state"], other["reason"]) == ("ready", None)
        assert models["pooled"]["state"] == "loaded"
        viewer.prefixes("pooled", lambda found: all(home not in one["held"] for one in found["prefixes"]))
        ask(server, "two")
        viewer.prefixes("pooled", lambda found: found["prefixes"][0]["held"] == {other["name"]: 1.0})
        assert server.client.post("/admin/cache/clear", json={}).status_code == 200
        viewer.prefixes("pooled", lambda found: not found["prefixes"])


@full
def test_remote_servers_and_one_that_is_killed(tmp_path: Path) -> None:
    with Server("-m", "fake:", "-np", "3") as one, Server("-m", "fake:", "-np", "3") as two:
        urls = {"a": {"url": one.url}, "b": {"url": two.url}}
        one.chat("say: awake"), two.chat("say: awake")
        with pool(tmp_path, urls) as server, Viewer(server) as viewer:
            models = viewer.until(lambda models: all(one["slots"] == 3 for one in replicas(models).values()))
            assert [(one["kind"], one["place"]) for one in replicas(models).values()] == [
                ("server", one.url), ("server", two.url)
            ]  # fmt: skip
            assert models["pooled"]["context"] > 0
            ask(server, "one")
            held = viewer.prefixes("pooled", lambda found: found["prefixes"])["prefixes"][0]["held"]
            (home,) = held
            models = viewer.until(lambda models: replicas(models)[home]["answered_tokens"] == len("one") + 1)
            assert models["pooled"]["totals"]["answered_tokens"] == len("one") + 1
            lost = {"a": one, "b": two}[home]
            lost.process.kill()
            models = viewer.until(lambda models: replicas(models)[home]["state"] == "down")
            assert (replicas(models)[home]["slots"], models["pooled"]["state"]) == (0, "loaded")
            viewer.prefixes("pooled", lambda found: not found["prefixes"][0]["held"])


def test_looking_keeps_no_replica_loaded(tmp_path: Path) -> None:
    models = {"pooled": {"path": "fake:", "replicas": 2, "idle_timeout": 2}}
    config = write_config(tmp_path, model_manager={"models": models})
    with Server("--config", config) as server, Viewer(server) as viewer:
        ask(server, "hello")
        (pid,) = server.workers()
        viewer.prefixes("pooled", lambda found: found["prefixes"] and not found["prefixes"][0]["held"])
        wait_for(lambda: not alive(pid), 10, "the worker to end")
        assert server.workers() == []


def test_a_key_sees_words_of_its_tenant_and_no_addresses(tmp_path: Path) -> None:
    keys = {
        "boss": {"key": "boss", "admin": True},
        "ann": {"key": "ann", "tenant": "stable"},
        "amy": {"key": "amy", "tenant": "stable"},
        "bob": {"key": "bob", "tenant": "field"},
        "cat": {"key": "cat"},
        "eve": {"key": "eve", "models": ["other"]},
    }
    with Server("-m", "fake:") as upstream, pool(tmp_path, {"a": {"url": upstream.url}}, keys=keys) as server:
        for name in ("ann", "bob", "cat"):
            ask(server, "hello", system=f"secret of {name}", key=name)
        readable = {"boss": {"ann", "bob", "cat"}, "ann": {"ann"}, "amy": {"ann"}, "bob": {"bob"}, "cat": set()}
        for name, expected in readable.items():
            with Viewer(server, name) as viewer:
                (model,) = viewer.state()["models"]
                found = viewer.prefixes("pooled", lambda _found: True)["prefixes"]
            assert {text.rpartition(" ")[2] for one in found if (text := one["text"])} == expected
            assert len(found) == 3, "prefixes are shown without their text"
            (replica,) = model["replicas"]
            assert replica["place"] == (upstream.url if name == "boss" else None)
        with Viewer(server, "eve") as viewer:
            assert viewer.state()["models"] == viewer.state()["models"] == []
            assert viewer.placed == {}
