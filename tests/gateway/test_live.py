"""`GET /live` over real HTTP: what is seen, by whom, and that looking changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server import Server, alive, chat_body, events, wait_for

CHAT = "/v1/chat/completions"
CONTRACT = Path(__file__).parents[2] / "web" / "src" / "api" / "live.ts"
# As fleet/lifecycle/live_feed.py has it.
MOST = 64
MANY = {"PADDOCK_SERVER__MAX_WATCHERS_PER_KEY": "1000"}
"""All of them from one address."""
# As worker/watching.py has them.
MOST_SPANS, LONGEST_TEXT = 400, 120


class Viewer:
    """Somebody who looks on, from entering to leaving."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._asking = server.client.stream("GET", "/live", headers=headers)
        self.trees: dict[str, dict[str, Any]] = {}
        self.events: list[str] = []

    def __enter__(self) -> Viewer:
        self.response = self._asking.__enter__()
        assert self.response.status_code == 200
        self._stream = events(self.response)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._asking.__exit__(kind, error, at)

    def state(self) -> dict[str, Any]:
        """The next one; trees that come before it are taken in."""
        for name, data in self._stream:
            self.events.append(name)
            content: dict[str, Any] = json.loads(data)
            if name == "state":
                return content
            assert name == "tree"
            self.trees[content["model"]] = content
        raise EOFError

    def until(self, condition: Callable[[dict[str, dict[str, Any]]], object]) -> dict[str, dict[str, Any]]:
        """The models, by name, when they are as wanted."""
        while True:
            models = {model["id"]: model for model in self.state()["models"]}
            if condition(models):
                return models

    def tree(self, model: str, condition: Callable[[dict[str, Any]], object] = lambda _tree: True) -> dict[str, Any]:
        """The model's tree when it is as wanted."""
        self.until(lambda _models: model in self.trees and condition(self.trees[model]))
        return self.trees[model]

    def rest(self) -> None:
        """Look until there is nothing more to be seen."""
        with pytest.raises(EOFError):
            while True:
                self.state()


def _config(folder: Path, **content: Any) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(content))
    return str(file)


def _busy(model: dict[str, Any]) -> list[dict[str, Any]]:
    return [slot for slot in model["slots"] if slot["state"] != "idle"]


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _interfaces() -> dict[str, set[str]]:
    """The fields of each shape that the page expects."""
    text = re.sub(r"/\*\*.*?\*/", "", CONTRACT.read_text(), flags=re.DOTALL)
    return {
        name: set(re.findall(r"^  (\w+)\??:", body, flags=re.MULTILINE))
        for name, body in re.findall(r"export interface (\w+) \{\n(.*?)\n\}", text, flags=re.DOTALL)
    }


def test_the_shapes_are_those_that_the_page_expects() -> None:
    shapes = _interfaces()
    with Server("-m", "fake:") as server, Viewer(server) as viewer:
        server.chat("say: hello")
        (model,) = viewer.until(lambda models: models["fake"]["totals"]["requests"]).values()
        tree = viewer.tree("fake", lambda tree: tree["nodes"])
        state = viewer.state()
    assert state.keys() == shapes["LiveState"]
    assert state["memory"].keys() == state["gpu_memory"].keys() == {"limit", "used"}
    assert model.keys() == shapes["LiveModel"]
    assert model["totals"].keys() == shapes["Totals"]
    assert {slot_name for slot in model["slots"] for slot_name in slot} == shapes["Slot"]
    for histogram in (model["first_token"], model["inter_token"]):
        assert histogram.keys() == shapes["Histogram"]
        assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
    assert tree.keys() == shapes["Tree"]
    assert tree["cells"].keys() == {"total", "used"}
    assert tree["stored"].keys() == {"limit", "used"}
    assert {name for node in tree["nodes"] for name in node} == shapes["TreeNode"]


def test_looking_wakes_nothing() -> None:
    with Server("-m", "fake:") as server, Viewer(server) as viewer:
        for _ in range(3):
            (model,) = viewer.state()["models"]
            assert (model["state"], model["slots"], model["waiting"], model["context"]) == ("unloaded", [], 0, None)
            assert sum(model["totals"].values()) == sum(model["first_token"]["counts"]) == 0
        assert server.workers() == []
        assert viewer.events == ["state"] * 3


def test_slots_are_seen_while_a_step_takes_forever() -> None:
    at_once = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "0"}
    with ThreadPoolExecutor(3) as pool, Server("-m", "fake:hang=1", "-np", "2", env=at_once) as server:
        server.chat("say: hello")
        for _ in range(3):
            pool.submit(server.client.post, CHAT, json=chat_body("hang: up"))
        with Viewer(server) as viewer:
            # Who came during the step is not in a slot before it ends.
            model = viewer.until(lambda models: len(_busy(models["fake"])) + models["fake"]["waiting"] == 3)["fake"]
            assert model["leaves_in"] is None
            for slot in _busy(model):
                assert slot["state"] == "prompt"
                assert slot["prompt_tokens"] > slot["prompt_done"] == slot["cached_tokens"]
            assert viewer.until(lambda models: models["fake"]["slots"])["fake"]["slots"] == model["slots"]


def test_an_answer_is_followed_from_its_slot_to_the_totals() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "3") as server, Viewer(server) as viewer:
        with server.client.stream("POST", CHAT, json=chat_body("say: " + "x" * 200, stream=True)) as response:
            stream = events(response)
            next(stream)
            models = viewer.until(lambda models: any(slot["state"] == "answer" for slot in models["fake"]["slots"]))
            (slot,) = _busy(models["fake"])
            assert slot["prompt_done"] == slot["prompt_tokens"] > 200
            assert 0 < slot["answered_tokens"] <= 200
            assert slot["key"] is None, "there are none here"
            assert len(models["fake"]["slots"]) == 3
            hot = viewer.tree("fake", lambda tree: any(node["hot"] for node in tree["nodes"]))
            assert [node["slots"] for node in hot["nodes"]] == [[slot["id"]]]
            assert hot["cells"]["used"] > 200
            list(stream)
        model = viewer.until(
            lambda models: models["fake"]["totals"]["requests"] and models["fake"]["totals"]["answered_tokens"] > 200
        )["fake"]
        assert model["totals"]["prompt_tokens"] == slot["prompt_tokens"]
        assert sum(model["first_token"]["counts"]) == 1
        assert sum(model["inter_token"]["counts"]) == 200
        assert 0 < model["leaves_in"] <= 300
        stored = viewer.tree("fake", lambda tree: not any(node["hot"] for node in tree["nodes"]))
        assert all(node["stored"] and node["slots"] == [] for node in stored["nodes"])
        assert stored["stored"]["used"] > 0


def test_a_shared_beginning_is_one_span_with_its_hits() -> None:
    system = {"role": "system", "content": "You know everything about horses. " * 12}
    with Server("-m", "fake:") as server:
        for word in ("one", "two", "three"):
            messages = [system, {"role": "user", "content": f"say: {word}"}]
            assert server.client.post(CHAT, json={"messages": messages}).status_code == 200
        with Viewer(server) as viewer:
            tree = viewer.tree("fake")
    (root,) = [node for node in tree["nodes"] if node["parent"] is None]
    assert root["start"] == 0
    assert root["tokens"] > 400, "in one piece, however it was computed and is stored"
    assert root["hits"] == 2
    assert "You know everything about horses." in root["text"]
    assert len(root["text"]) == LONGEST_TEXT
    assert {node["start"] for node in tree["nodes"] if node["parent"] == root["id"]} == {root["tokens"]}
    assert (tree["hits"], tree["misses"], tree["omitted"]) == (2, 1, 0)


def test_a_tree_is_not_told_again_until_it_has_changed() -> None:
    with Server("-m", "fake:") as server:
        server.chat("say: hello")
        with Viewer(server) as viewer:
            viewer.tree("fake", lambda tree: not any(node["hot"] for node in tree["nodes"]))
            told = viewer.events.count("tree")
            for _ in range(3):
                viewer.state()
            assert viewer.events.count("tree") == told
            server.chat("say: goodbye")
            viewer.tree("fake", lambda tree: len(tree["nodes"]) > 1)


def test_a_tree_that_is_too_large_is_shown_in_part() -> None:
    prompts = [f"{number:03} {'abc' * 10}" for number in range(450)]
    with Server("-m", "fake:", "-np", "8") as server:
        for first in range(0, len(prompts), 50):
            body = {"prompt": prompts[first : first + 50], "max_tokens": 1}
            assert server.client.post("/v1/completions", json=body).status_code == 200
        with Viewer(server) as viewer:
            tree = viewer.tree("fake")
    assert 0 < len(tree["nodes"]) <= MOST_SPANS
    assert tree["omitted"] > 50
    ids = {node["id"] for node in tree["nodes"]}
    assert all(node["parent"] in ids for node in tree["nodes"] if node["parent"] is not None)


def test_words_of_a_real_model(demo_server: Server) -> None:
    body = {"prompt": "What does a heron eat? <|im_end|>", "max_tokens": 1}
    assert demo_server.client.post("/v1/completions", json=body).status_code == 200
    with Viewer(demo_server) as viewer:
        (name,) = viewer.until(lambda models: any(model["state"] == "loaded" for model in models.values()))
        tree = viewer.tree(name)
    texts = [node["text"] for node in tree["nodes"]]
    assert any("heron eat? <|im_end|>" in text for text in texts), "special tokens by their names"
    assert tree["cells"]["total"] >= 1024


def test_kinds_of_models_without_such_a_tree(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    models = {kind: {"path": str(tiny_models[kind])} for kind in ("embedding", "recurrent")}
    with Server("--config", _config(tmp_path, model_manager={"models": models})) as server, Viewer(server) as viewer:
        body = {"model": "embedding", "input": ["the grass", "a heron"]}
        assert server.client.post("/v1/embeddings", json=body).status_code == 200
        for text in ("the the the the", "the the the the", "the the the of the of the of"):
            server.chat(text * 8, model="recurrent", max_tokens=2)
        found = viewer.until(lambda models: all(model["slots"] for model in models.values()))
        assert (found["embedding"]["kind"], found["recurrent"]["kind"]) == ("embedding", "generation")
        assert [slot["state"] for slot in found["embedding"]["slots"]] == ["idle"]
        tree = viewer.tree("recurrent", lambda tree: any(node["stored"] and node["hits"] for node in tree["nodes"]))
        assert not any(node["hot"] for node in tree["nodes"])
        assert "embedding" not in viewer.trees


def test_a_load_is_followed_and_a_failure_explained(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nothing")
    models = {
        "slow": {"path": "fake:load=4"},
        "broken": {"path": str(broken)},
        "wrong": {"path": "fake:nonsense=1"},
    }
    config = _config(tmp_path, model_manager={"models": models, "memory_limit": "4GiB"})
    with Server("--config", config) as server, Viewer(server) as viewer:
        state = viewer.state()
        assert state["memory"]["used"] == 0
        assert 0 < state["memory"]["limit"] <= 4 * 2**30
        assert {model["id"]: model["state"] for model in state["models"]} == {
            "slow": "unloaded", "broken": "failed", "wrong": "unloaded"
        }  # fmt: skip
        assert server.client.post("/models/load", json={"model": "slow"}).status_code == 200
        loading = viewer.until(lambda models: models["slow"]["state"] == "loading")["slow"]
        assert 0 <= loading["progress"] <= 1
        loaded = viewer.until(lambda models: models["slow"]["state"] == "loaded")["slow"]
        assert (loaded["progress"], loaded["reason"]) == (None, None)
        assert loaded["context"] > 0
        assert server.client.post("/admin/load", json={"model": "wrong"}).status_code == 503
        failed = viewer.until(lambda models: models["wrong"]["state"] == "failed")
        assert "nonsense" in failed["wrong"]["reason"]
        assert failed["broken"]["reason"]


def test_a_state_of_many_models_is_small(tmp_path: Path) -> None:
    models = {f"model-{number}": {"path": "fake:", "parallel": 4} for number in range(20)}
    config = _config(tmp_path, model_manager={"models": models})
    with Server("--config", config) as server, Viewer(server) as viewer:
        assert len(json.dumps(viewer.state(), separators=(",", ":"))) < 16_000


# ── by whom ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = {"slow": {"path": "fake:delay=0.05"}, "other": {"path": "fake:"}}
    config = _config(tmp_path_factory.mktemp("keys"), server={"keys": KEYS}, model_manager={"models": models})
    with Server("--config", config) as server:
        yield server


@contextmanager
def _asking(server: Server, name: str, text: str) -> Iterator[None]:
    """While this key has an answer under way."""
    body = chat_body(text, model="slow", stream=True)
    with server.client.stream("POST", CHAT, json=body, headers={"authorization": f"Bearer {name}"}) as response:
        stream = events(response)
        next(stream)
        yield


def test_a_key_is_asked_for(locked: Server) -> None:
    assert locked.client.get("/live").status_code == 401
    assert locked.client.get("/live", headers={"authorization": "Bearer nobody"}).status_code == 401


def test_each_sees_the_models_it_may_ask(locked: Server) -> None:
    for name, expected in (("boss", {"slow", "other"}), ("ann", {"slow", "other"}), ("eve", {"other"})):
        with Viewer(locked, name) as viewer:
            assert {model["id"] for model in viewer.state()["models"]} == expected


def test_names_of_others_are_not_told(locked: Server) -> None:
    with _asking(locked, "ann", "say: " + "a" * 2000), _asking(locked, "bob", "say: " + "b" * 2000):
        for name, expected in (("boss", {"ann", "bob"}), ("ann", {"ann", None}), ("amy", {None}), ("cat", {None})):
            with Viewer(locked, name) as viewer:
                model = viewer.until(lambda models: len(_busy(models["slow"])) == 2)["slow"]
            assert {slot["key"] for slot in _busy(model)} == expected


def test_words_are_for_the_tenant_they_are_of(locked: Server) -> None:
    said = {name: f"say: secret of {name}" for name in ("ann", "bob", "cat", "dan")}
    for name, text in said.items():
        body = chat_body(text, model="slow")
        assert locked.client.post(CHAT, json=body, headers={"authorization": f"Bearer {name}"}).status_code == 200
    may_read = {
        "boss": set(said), "ann": {"ann"}, "amy": {"ann"}, "bob": {"bob"}, "cat": set(), "cid": set(), "dan": {"dan"}
    }  # fmt: skip
    for name, expected in may_read.items():
        with Viewer(locked, name) as viewer:
            tree = viewer.tree("slow")
        everything = json.dumps(tree)
        assert {other for other in said if f"secret of {other}" in everything} == expected
        assert len(tree["nodes"]) >= len(said), "which they see that there are"
    with Viewer(locked, "eve") as viewer:
        viewer.state()
        viewer.state()
        assert "slow" not in viewer.trees


def test_who_loses_a_key_sees_no_more(tmp_path: Path) -> None:
    config = _config(tmp_path, server={"keys": KEYS}, model_manager={"model": "fake:"})
    with Server("--config", config) as server:
        with Viewer(server, "ann") as ann, Viewer(server, "bob") as bob:
            ann.state()
            bob.state()
            others = {name: said for name, said in KEYS.items() if name != "ann"}
            _config(tmp_path, server={"keys": others}, model_manager={"model": "fake:"})
            assert server.client.post("/admin/reload", headers={"authorization": "Bearer boss"}).status_code == 200
            ann.rest()
            bob.state()


# ── that it changes nothing ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_is_watched_leaves_when_idle() -> None:
    with Server("-m", "fake:", "--idle-timeout", "3") as server, Viewer(server) as viewer:
        server.chat("say: hello")
        (pid,) = server.workers()
        # What it did is remembered, so this is not how it was before.
        gone = viewer.until(
            lambda models: models["fake"]["state"] == "unloaded" and models["fake"]["totals"]["requests"]
        )["fake"]
        assert (gone["slots"], gone["reason"], gone["leaves_in"]) == ([], None, None)
        wait_for(lambda: not alive(pid), 10, "the worker to be gone")
        assert server.workers() == []


def test_a_worker_that_dies_is_seen_to_and_so_is_the_next() -> None:
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
        left = viewer.until(lambda models: models["fake"]["state"] != "loaded")["fake"]
        assert (left["state"], left["reason"]) == ("unloaded", None), "it has worked since"


def test_nobody_looks_for_those_who_left_without_a_word() -> None:
    with Server("-m", "fake:", env=MANY) as server:
        server.chat("say: hello")
        (pid,) = server.workers()
        before = _threads(pid)
        host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
        left = []
        for _ in range(3):
            for _ in range(MOST):
                viewer = socket.create_connection((host, port))
                viewer.sendall(b"GET /live HTTP/1.1\r\nHost: here\r\n\r\n")
                left.append(viewer)
            assert left[-1].recv(12) == b"HTTP/1.1 200"
            wait_for(lambda: _threads(pid) == before + 1, 30, "one thread for all of them")
            for viewer in left:
                viewer.close()
            wait_for(lambda: _threads(pid) == before, 30, "the thread that shows things to be gone")
        with Viewer(server) as last:
            last.tree("fake")


def test_there_is_room_for_so_many() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server("-m", "fake:", env=MANY))
        another = stack.enter_context(httpx.Client(base_url=server.url))
        viewers = [stack.enter_context(Viewer(server)) for _ in range(MOST)]
        for viewer in viewers:
            viewer.state()
        refused = another.get("/live")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
        assert server.chat("say: hello")["choices"], "others are none the worse"
        for viewer in viewers:
            viewer.tree("fake")
        viewers[0].__exit__(None, None, None)

        def admitted() -> bool:
            with another.stream("GET", "/live") as response:
                return response.status_code == 200

        wait_for(admitted, 10, "room for one more")


def test_a_server_that_stops_waits_for_no_viewer(tmp_path: Path) -> None:
    config = _config(tmp_path, model_manager={"model": "fake:"})
    with Server("--config", config, env={"PADDOCK_SERVER__SHUTDOWN_GRACE": "600"}) as server:
        server.chat("say: hello")
        with Viewer(server) as viewer, server.client.stream("GET", "/models/sse") as models:
            stream = events(models)
            viewer.state()
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            viewer.rest()
            list(stream)
            assert server.process.wait(30) == 0
