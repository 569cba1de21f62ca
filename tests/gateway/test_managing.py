"""Searching, downloading, deleting and choosing options of models over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.key_config import ADMIN, KeyConfig
from tests.hub import Hub, Repository
from tests.server import Server, chat_body, wait_for


@dataclass
class Place:
    server: Server
    hub: Hub
    models: Path

    def get(self, path: str, **query: Any) -> Any:
        response = self.server.client.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.server.client.post(path, json=body)

    def download(self, name: str) -> dict[str, Any]:
        """Its state after its end."""
        assert self.post("/models", model=name).json() == {"success": True}

        def ended() -> dict[str, Any] | None:
            (found,) = [one for one in self.get("/admin/downloads")["downloads"] if one["name"] == name]
            return found if found["state"] != "running" else None

        wait_for(lambda: ended() is not None, 30, f"the download of {name}")
        state = ended()
        assert state is not None
        return state

    def cards(self) -> dict[str, Any]:
        return {card["id"]: card for card in self.get("/v1/models")["data"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_models: dict[str, Path]) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("managing")
    models = folder / "models"
    models.mkdir()
    content = tiny_models["llama"].read_bytes()
    (models / "own.gguf").write_bytes(content)
    files = {
        "tiny-Q4_0.gguf": content,
        "tiny-Q8_0.gguf": content + b"\0" * 64,
        "mmproj-f16.gguf": b"?",
        "README.md": b"?",
    }
    with Hub(owner__tiny=Repository(files), owner__gated=Repository({}, gated=True)) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf")}
        with Server("--models-dir", str(models), env=env) as server:
            yield Place(server, hub, models)


class Events:
    """Reads `/models/sse` until it is closed."""

    def __init__(self, server: Server) -> None:
        self.seen: list[dict[str, Any]] = []
        self._url = f"{server.url}/models/sse"
        self._is_closed = False
        threading.Thread(target=self._read, daemon=True).start()
        wait_for(lambda: bool(self.seen), 10, "the first event")

    def _read(self) -> None:
        with httpx.stream("GET", self._url, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.seen.append(json.loads(line.removeprefix("data: ")))
                if self._is_closed:
                    return

    def wait(self, event: str, model: str) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [one for one in self.seen if (one["event"], one["model"]) == (event, model)]

        wait_for(lambda: bool(found()), 30, f"{event} of {model}")
        return found()[-1]

    def close(self) -> None:
        self._is_closed = True


def test_the_hub_is_searched(place: Place) -> None:
    (found,) = place.get("/admin/hub", search="tiny")["repositories"]
    assert found == {
        "name": "owner/tiny",
        "downloads": 3,
        "likes": 2,
        "updated": "2026-01-02T03:04:05+00:00",
        "is_gated": False,
    }
    contents = place.get("/admin/hub/owner/tiny")
    assert [(one["name"], one["files"], one["fits"]) for one in contents["models"]] == [
        ("owner/tiny:Q4_0", ["tiny-Q4_0.gguf"], True),
        ("owner/tiny:Q8_0", ["tiny-Q8_0.gguf"], True),
    ]
    assert contents["projectors"] == ["mmproj-f16.gguf"]
    gated = place.server.client.get("/admin/hub/owner/gated")
    assert gated.status_code == 400 and "is gated" in gated.json()["error"]["message"]
    for name in ("Ã/1Në", "owner/-x", f"owner/{'x' * 100}"):
        refused = place.server.client.get(f"/admin/hub/{name}")
        assert refused.status_code == 400 and "is not a model on the hub" in refused.json()["error"]["message"]
    for query in ({"limit": 0}, {"limit": "x"}, {"search": "x" * 201}):
        assert place.server.client.get("/admin/hub", params=query).status_code == 400


def test_a_download_is_served_and_can_be_deleted(place: Place) -> None:
    events = Events(place.server)
    done = place.download("owner/tiny:Q4_0")
    size = len(place.hub.repositories["owner/tiny"].files["tiny-Q4_0.gguf"])
    assert done == {
        "name": "owner/tiny:Q4_0",
        "state": "finished",
        "done": size,
        "total": size,
        "model": "tiny-Q4_0",
        "error": None,
    }
    progress = events.wait("download_progress", "owner/tiny:Q4_0")
    ((url, amount),) = progress["data"].items()
    assert url.endswith("/tiny-Q4_0.gguf") and amount == {"done": size, "total": size}
    events.wait("download_finished", "owner/tiny:Q4_0")
    events.wait("models_reload", "*")
    assert {name: card["can_remove"] for name, card in place.cards().items()} == {"own": False, "tiny-Q4_0": True}
    answer = place.post("/v1/chat/completions", **chat_body("hello", model="tiny-Q4_0", max_tokens=2))
    assert answer.status_code == 200, answer.text

    refused = place.server.client.delete("/models", params={"model": "own"})
    assert refused.status_code == 403 and "own was not downloaded" in refused.json()["error"]["message"]
    assert place.server.client.delete("/models", params={"model": "none"}).status_code == 404
    assert place.server.client.delete("/models").status_code == 400
    assert place.server.client.delete("/models", params={"model": "tiny-Q4_0"}).json() == {"success": True}
    events.wait("model_remove", "tiny-Q4_0")
    events.close()
    assert list(place.cards()) == ["own"]
    assert [path.name for path in place.models.rglob("*") if not path.is_relative_to(place.models / ".pull")] == [
        "own.gguf"
    ], "its folders are gone too"


def test_a_changed_file_is_not_deleted(place: Place) -> None:
    place.download("owner/tiny:Q4_0")
    (path,) = place.models.rglob("tiny-Q4_0.gguf")
    path.write_bytes(path.read_bytes() + b"\0")
    assert place.post("/models").status_code == 200
    assert place.server.client.delete("/models", params={"model": "tiny-Q4_0"}).status_code == 403
    path.unlink()
    assert place.post("/models").status_code == 200


def test_a_download_is_cancelled_and_continued(place: Place) -> None:
    repository = place.hub.repositories["owner/tiny"]
    repository.pause_after = 1000
    name = "owner/tiny:Q8_0"
    assert place.post("/models", model=name).json() == {"success": True}

    def running() -> dict[str, Any]:
        (found,) = [one for one in place.get("/admin/downloads")["downloads"] if one["name"] == name]
        return dict(found)

    assert repository.paused.wait(30)
    assert place.post("/models", model=name).json() == {"success": True}, "it runs already"
    assert place.post("/models/unload", model=name).json() == {"success": True}
    repository.resume.set()
    wait_for(lambda: running()["state"] == "cancelled", 30, "the end of the download")
    assert running()["error"] == "the download was cancelled"
    repository.pause_after = None
    assert place.download(name)["state"] == "finished"
    assert list(place.cards()) == ["own", "tiny-Q8_0"]


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [("x", 400, "is not a model on the hub"), ("owner/../x", 400, "is not a model"), ("", 400, "is not a model")],
)
def test_what_is_no_name_is_refused(place: Place, name: str, status: int, error: str) -> None:
    response = place.post("/models", model=name)
    assert response.status_code == status
    assert error in response.json()["error"]["message"] and response.json()["error"]["param"] == "model"


def test_a_failed_download_says_why(place: Place) -> None:
    for name, reason in (
        ("owner/none", "no repository owner/none"),
        ("owner/tiny:Q2_K", "it has no Q2_K; it has Q4_0, Q8_0"),
        ("owner/gated", "is gated"),
    ):
        failed = place.download(name)
        assert failed["state"] == "failed" and reason in failed["error"]


def test_options_of_a_load(place: Place) -> None:
    def context() -> int:
        return int(place.get("/props", model="own")["default_generation_settings"]["n_ctx"])

    plain = place.post("/admin/estimate", model="own").json()
    larger = place.post("/admin/estimate", model="own", options={"n_ctx": 512, "parallel": 1}).json()
    assert plain["fits"] and plain["problem"] is None and plain["gpu"] == {"weights": 0, "cache": 0, "compute": 0}
    assert larger["host"]["weights"] == plain["host"]["weights"]
    assert 0 < larger["host"]["cache"] < plain["host"]["cache"]
    assert place.post("/admin/load", model="own").status_code == 200
    before = context()
    assert place.post("/admin/load", model="own", options={"n_ctx": 512, "parallel": 1}).status_code == 200
    assert context() == 512 < before
    assert place.post("/v1/chat/completions", **chat_body("x", model="own", max_tokens=2)).status_code == 200
    assert place.post("/admin/load", model="own", options={}).status_code == 200
    assert context() == before, "an empty object restores the settings"
    for options, param in (({"n_ctx": -1}, "n_ctx"), ({"cache_type_k": "f3"}, "cache_type_k")):
        refused = place.post("/models/load", model="own", options=options)
        assert refused.status_code == 400 and param in refused.json()["error"]["message"]


def test_what_does_not_fit(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    models = {"small": {"path": "fake:memory=10"}, "large": {"path": "fake:memory=4000"}}
    config.write_text(json.dumps({"model_manager": {"models": models, "memory_limit": "100 MiB"}}))
    with Server("--config", str(config)) as server:
        found = {
            name: server.client.post("/admin/estimate", json={"model": name}).json() for name in ("small", "large")
        }
        assert found["small"]["fits"] and found["small"]["limit"]["host"] <= 100 << 20
        assert not found["large"]["fits"] and "needs 3.91 GiB of host memory" in found["large"]["problem"]
        no_folder = server.client.post("/models", json={"model": "owner/name"})
        assert no_folder.status_code == 403 and "--models-dir" in no_folder.json()["error"]["message"]
        assert server.client.get("/admin/downloads").json() == {"folder": None, "downloads": []}


def test_only_admins_manage_models(tmp_path: Path) -> None:
    user = {"authorization": "Bearer anna-key"}
    with KeyConfig(tmp_path).server() as server:
        for method, path in (
            ("GET", "/admin/hub"),
            ("GET", "/admin/hub/a/b"),
            ("GET", "/admin/downloads"),
            ("POST", "/admin/estimate"),
            ("POST", "/models"),
            ("DELETE", "/models?model=vectors"),
        ):
            assert server.client.request(method, path, headers=user).status_code == 403, path
        assert server.client.get("/admin/downloads", headers=ADMIN).status_code == 200
