"""`GET /live` over HTTP: which key sees what, and that watching changes nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.gateway.live_viewer import CHAT, Viewer, busy_slots, thread_count, write_config
from tests.server import Server, alive, chat_body, client_of, events, wait_for
from tests.tiers import full

# The limit of fleet/lifecycle/live_feed.py.
MOST = 64
MANY = {"PADDOCK_SERVER__MAX_WATCHERS_PER_KEY": "1000"}
"""All viewers connect from one address."""
KEYS: dict[str, Any] = {
    "boss": {"key": "boss", "admin": True},
    "ann": {"key": "ann", "tenant": "stable"},
    "amy": {"key": "amy", "tenant": "stable"},
    "bob": {"key": "bob", "tenant": "field"},
    "cat": {"key": "cat"},
    "cid": {"key": "cid"},
    "dan": {"key": "dan", "share_prefixes": False},
    "eve": {"key": "eve", "models": ["other"]},
}


@pytest.fixture(scope="module")
def with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = {"slow": {"path": "fake:delay=0.05"}, "other": {"path": "fake:"}}
    config = write_config(tmp_path_factory.mktemp("keys"), server={"keys": KEYS}, model_manager={"models": models})
    with Server("--config", config) as server:
        yield server


@contextmanager
def _generating(server: Server, name: str, text: str) -> Iterator[None]:
    """A generation of this key runs inside the block."""
    body = chat_body(text, model="slow", stream=True)
    with server.client.stream("POST", CHAT, json=body, headers={"authorization": f"Bearer {name}"}) as response:
        stream = events(response)
        next(stream)
        yield


def test_the_live_view_requires_a_key(with_keys: Server) -> None:
    assert with_keys.client.get("/live").status_code == 401
    assert with_keys.client.get("/live", headers={"authorization": "Bearer nobody"}).status_code == 401


def test_a_key_sees_the_models_that_it_may_use(with_keys: Server) -> None:
    for name, expected in (("boss", {"slow", "other"}), ("ann", {"slow", "other"}), ("eve", {"other"})):
        with Viewer(with_keys, name) as viewer:
            assert {model["id"] for model in viewer.state()["models"]} == expected


@full
def test_cache_reports_are_shown_to_their_own_key_or_tenant_only(with_keys: Server) -> None:
    names = ("ann", "bob", "cat", "dan")
    for name in names:
        body = chat_body(f"say: report of {name}", model="other")
        for text in ("old", "new"):
            system = {"role": "system", "content": f"the {text} rules of {name}"}
            sent = {**body, "messages": [system, *body["messages"]]}
            response = with_keys.client.post(CHAT, json=sent, headers={"authorization": f"Bearer {name}"})
            assert response.status_code == 200
    expected = {"boss": set(names), "ann": {"ann"}, "amy": {"ann"}, "bob": {"bob"}, "cat": {"cat"}, "dan": {"dan"}}
    for watching, readable in expected.items():
        with Viewer(with_keys, watching) as viewer:
            while "other" not in viewer.reports:
                viewer.state()
        reports = viewer.reports["other"]["reports"]
        assert {name for name in names if f"rules of {name}" in json.dumps(reports)} == readable
        assert {report["key"] for report in reports} == ({None} if watching == "amy" else readable)
        assert [report["report"]["reason"] for report in reports][-1] == "changed"
    with Viewer(with_keys, "cid") as viewer:
        while "other" not in viewer.reports:
            viewer.state()
    assert viewer.reports["other"]["reports"] == []


def test_the_names_of_other_keys_are_hidden(with_keys: Server) -> None:
    with _generating(with_keys, "ann", "say: " + "a" * 2000), _generating(with_keys, "bob", "say: " + "b" * 2000):
        for name, expected in (("boss", {"ann", "bob"}), ("ann", {"ann", None}), ("amy", {None}), ("cat", {None})):
            with Viewer(with_keys, name) as viewer:
                model = viewer.until(lambda models: len(busy_slots(models["slow"])) == 2)["slow"]
            assert {slot["key"] for slot in busy_slots(model)} == expected


def test_texts_are_shown_to_their_own_tenant_only(with_keys: Server) -> None:
    texts = {name: f"say: secret of {name}" for name in ("ann", "bob", "cat", "dan")}
    for name, text in texts.items():
        body = chat_body(text, model="slow")
        assert with_keys.client.post(CHAT, json=body, headers={"authorization": f"Bearer {name}"}).status_code == 200
    may_read = {
        "boss": set(texts), "ann": {"ann"}, "amy": {"ann"}, "bob": {"bob"}, "cat": set(), "cid": set(), "dan": {"dan"}
    }  # fmt: skip
    for name, expected in may_read.items():
        with Viewer(with_keys, name) as viewer:
            tree = viewer.tree("slow")
        shown = json.dumps(tree)
        assert {other for other in texts if f"secret of {other}" in shown} == expected
        assert len(tree["nodes"]) >= len(texts), "spans are shown without their text"
    with Viewer(with_keys, "eve") as viewer:
        viewer.state()
        viewer.state()
        assert "slow" not in viewer.trees


def test_the_stream_ends_when_its_key_is_removed(tmp_path: Path) -> None:
    config = write_config(tmp_path, server={"keys": KEYS}, model_manager={"model": "fake:"})
    with Server("--config", config) as server:
        with Viewer(server, "ann") as ann, Viewer(server, "bob") as bob:
            ann.state()
            bob.state()
            others = {name: entry for name, entry in KEYS.items() if name != "ann"}
            write_config(tmp_path, server={"keys": others}, model_manager={"model": "fake:"})
            assert server.client.post("/admin/reload", headers={"authorization": "Bearer boss"}).status_code == 200
            ann.read_to_end()
            bob.state()


def test_a_watched_model_is_unloaded_when_idle() -> None:
    with Server("-m", "fake:", "--idle-timeout", "3") as server, Viewer(server) as viewer:
        server.chat("say: hello")
        (pid,) = server.workers()
        # The totals distinguish this state from the one before the load.
        unloaded = viewer.until(
            lambda models: models["fake"]["state"] == "unloaded" and models["fake"]["totals"]["requests"]
        )["fake"]
        assert (unloaded["slots"], unloaded["reason"], unloaded["leaves_in"]) == ([], None, None)
        wait_for(lambda: not alive(pid), 10, "the worker to end")
        assert server.workers() == []


@full
def test_a_crash_and_the_next_worker_are_shown() -> None:
    with Server("-m", "fake:") as server, Viewer(server) as viewer:
        server.chat("say: hello")
        viewer.tree("fake")
        (pid,) = server.workers()
        os.kill(pid, signal.SIGKILL)
        failed = viewer.until(lambda models: models["fake"]["state"] == "failed")["fake"]
        assert "SIGKILL" in failed["reason"]
        assert failed["slots"] == []
        del viewer.trees["fake"]
        server.chat("say: again")
        assert viewer.until(lambda models: models["fake"]["slots"])["fake"]["state"] == "loaded"
        viewer.tree("fake", lambda tree: tree["nodes"])
        assert server.client.post("/admin/unload", json={"model": "fake"}).status_code == 200
        unloaded = viewer.until(lambda models: models["fake"]["state"] != "loaded")["fake"]
        assert (unloaded["state"], unloaded["reason"]) == ("unloaded", None), (
            "the failure is cleared by a successful load"
        )


def test_workers_stop_publishing_when_all_viewers_have_disconnected() -> None:
    with Server("-m", "fake:", env=MANY) as server:
        server.chat("say: hello")
        (pid,) = server.workers()
        before = thread_count(pid)
        host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
        viewers = []
        for _ in range(3):
            for _ in range(MOST):
                viewer = socket.create_connection((host, port))
                viewer.sendall(b"GET /live HTTP/1.1\r\nHost: here\r\n\r\n")
                viewers.append(viewer)
            assert viewers[-1].recv(12) == b"HTTP/1.1 200"
            wait_for(lambda: thread_count(pid) == before + 1, 30, "one thread for all viewers")
            for viewer in viewers:
                viewer.close()
            wait_for(lambda: thread_count(pid) == before, 30, "the thread to end")
        with Viewer(server) as last:
            last.tree("fake")


def test_the_number_of_viewers_is_limited() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server("-m", "fake:", env=MANY))
        another = stack.enter_context(client_of(server.url))
        viewers = [stack.enter_context(Viewer(server)) for _ in range(MOST)]
        for viewer in viewers:
            viewer.state()
        refused = another.get("/live")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
        assert server.chat("say: hello")["choices"], "requests are not affected"
        for viewer in viewers:
            viewer.tree("fake")
        viewers[0].__exit__(None, None, None)

        def admitted() -> bool:
            with another.stream("GET", "/live") as response:
                return response.status_code == 200

        wait_for(admitted, 10, "a free place")


def test_shutdown_does_not_wait_for_viewers(tmp_path: Path) -> None:
    config = write_config(tmp_path, model_manager={"model": "fake:"})
    with Server("--config", config, env={"PADDOCK_SERVER__SHUTDOWN_GRACE": "600"}) as server:
        server.chat("say: hello")
        with Viewer(server) as viewer, server.client.stream("GET", "/models/sse") as models:
            stream = events(models)
            viewer.state()
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            viewer.read_to_end()
            list(stream)
            assert server.process.wait(30) == 0
