"""Loading, unloading and reloading models over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import Server, alive, chat_body, events, wait_for

CHAT = "/v1/chat/completions"


class Place:
    """A server with a configuration file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config.json"
        self.models: dict[str, Any] = {"quick": {"path": "fake:"}, "slow": {"path": "fake:delay=0.05"}}
        self.manager: dict[str, Any] = {"default_model": "quick"}
        self.write()

    def write(self, **server: Any) -> None:
        self.file.write_text(json.dumps({"server": server, "model_manager": self.manager | {"models": self.models}}))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    with Server("--config", str(place.file)) as server:
        yield server


def _post(server: Server, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def _states(server: Server) -> dict[str, str]:
    return {model["name"]: model["state"] for model in server.client.get("/admin/status").json()["models"]}


def _pid(server: Server, name: str) -> int:
    (pid,) = [model["pid"] for model in server.client.get("/admin/status").json()["models"] if model["name"] == name]
    assert isinstance(pid, int)
    return pid


def test_load_and_unload(server: Server) -> None:
    assert _states(server) == {"quick": "unloaded", "slow": "unloaded"}
    assert _post(server, "/admin/load", model="slow") == {"status": "ok", "models": ["slow"]}
    assert _post(server, "/admin/load", model="quick")["models"] == ["quick"]
    assert _states(server) == {"quick": "loaded", "slow": "loaded"}
    pid = _pid(server, "slow")
    assert _post(server, "/admin/unload", model="slow")["models"] == ["slow"]
    assert not alive(pid)
    assert _post(server, "/admin/unload", model="all")["models"] == ["quick"]
    assert _post(server, "/admin/unload", model="all")["models"] == []
    assert server.workers() == []
    for path in ("/admin/load", "/admin/unload", "/models/load", "/models/unload"):
        response = server.client.post(path, json={"model": "nobody"})
        assert (response.status_code, response.json()["error"]["param"]) == (404, "model")


def test_reload_finds_new_models_and_ends_no_stream(server: Server, place: Place) -> None:
    body = chat_body("say: " + "x" * 80, model="slow", stream=True)
    with server.client.stream("POST", CHAT, json=body) as response:
        stream = events(response)
        next(stream)
        pid = _pid(server, "slow")
        place.models["slow"]["n_ctx"] = 512
        place.models["new"] = {"path": "fake:", "aliases": ["fresh"]}
        place.write(log_format="json")
        done = _post(server, "/admin/reload")
        assert (sorted(done["changed"]), done["restart_needed"]) == (["new", "slow"], ["server.log_format"])
        assert list(stream)[-1] == ("message", "[DONE]")
    assert server.chat("say: x", model="fresh")["choices"][0]["message"]["content"] == "x"
    server.chat("say: x", model="slow")
    assert _pid(server, "slow") != pid
    assert server.client.get("/props", params={"model": "slow"}).json()["default_generation_settings"]["n_ctx"] == 512


def test_reload_changes_origins_and_log_level(server: Server, place: Place) -> None:
    origin = {"origin": "http://page.example"}

    def look(name: str) -> httpx.Response:
        return server.client.get("/v1/models", headers={**origin, "x-request-id": name})

    server.chat("say: x", model="quick")
    pid = _pid(server, "quick")
    assert look("look-1").status_code == 403
    place.write(cors_origins=["http://page.example/"], log_level="ERROR")
    done = _post(server, "/admin/reload")
    assert (done["changed"], done["restart_needed"]) == ([], [])
    assert look("look-2").status_code == 200
    place.write(cors_origins=["http://page.example"], log_level="INFO")
    assert _post(server, "/admin/reload")["restart_needed"] == []
    assert look("look-3").headers["access-control-allow-origin"] == "http://page.example"
    wait_for(lambda: "look-3" in "".join(server.output), 10, "its line in the log")
    assert "look-1" in "".join(server.output) and "look-2" not in "".join(server.output)
    assert _pid(server, "quick") == pid, "no model left for it"


@pytest.mark.parametrize(
    "broken",
    ['{"model_manager": {', '{"model_manager": {"modells": {}}}', '{"model_manager": {"models_directory": "/no"}}'],
)
def test_invalid_configuration_changes_nothing(server: Server, place: Place, broken: str) -> None:
    server.chat("say: x")
    pid = _pid(server, "quick")
    place.file.write_text(broken)
    response = server.client.post("/admin/reload")
    assert response.status_code == 400
    assert "nothing was changed" in response.json()["error"]["message"]
    assert server.chat("say: x", model="slow")
    assert _pid(server, "quick") == pid
    place.write()
    assert _post(server, "/admin/reload")["changed"] == []


def test_sighup_reloads(server: Server, place: Place) -> None:
    place.models["new"] = {"path": "fake:"}
    place.write()
    os.kill(server.process.pid, signal.SIGHUP)
    wait_for(lambda: "new" in _states(server), 10, "the new model")
    place.file.write_text("{")
    os.kill(server.process.pid, signal.SIGHUP)
    wait_for(lambda: any("not reloaded" in line for line in server.output), 10, "the complaint")
    assert server.chat("say: x")


def test_reload_finds_added_and_removed_files(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    shutil.copy(tiny_models["llama"], tmp_path / "one.gguf")
    env = {"PADDOCK_MODEL_MANAGER__WATCH_INTERVAL": "0"}  # only a reload scans the folder
    with Server("--models-dir", str(tmp_path), "-c", "256", env=env) as server:
        server.chat("hello", model="one", max_tokens=4)
        shutil.copy(tiny_models["llama"], tmp_path / "two.gguf")
        assert server.client.post(CHAT, json=chat_body("hello", model="two")).status_code == 404
        listed = server.client.post("/models", params={"reload": 1}).json()["data"]
        assert [card["id"] for card in listed] == ["one", "two"]
        server.chat("hello", model="two", max_tokens=4)
        (tmp_path / "one.gguf").unlink()
        assert _post(server, "/admin/reload")["models"] == ["two"]
        assert server.client.post(CHAT, json=chat_body("hello", model="one")).status_code == 404
        wait_for(lambda: len(server.workers()) == 1, 10, "its worker to go")


def test_routes_of_llama_servers_router(server: Server) -> None:
    with server.client.stream("GET", "/models/sse") as response:
        stream = (json.loads(data) for _, data in events(response))
        assert {event["model"]: event["data"]["status"] for event in (next(stream), next(stream))} == {
            "quick": "unloaded",
            "slow": "unloaded",
        }
        assert _post(server, "/models/load", model="quick") == {"success": True}
        seen = [next(stream)["data"]["status"]]
        while seen[-1] != "loaded":
            seen.append(next(stream)["data"]["status"])
        assert seen[0] == "loading"
        assert _post(server, "/models/unload", model="quick") == {"success": True}
        while seen[-1] != "unloaded":
            seen.append(next(stream)["data"]["status"])
    status = {card["id"]: card["status"]["value"] for card in server.client.get("/models").json()["data"]}
    assert status == {"quick": "unloaded", "slow": "unloaded"}


def test_health_while_the_only_model_loads() -> None:
    with Server("-m", "fake:load=3") as server:
        assert server.client.get("/health").json()["model_loaded"] is False
        assert _post(server, "/models/load", model="fake") == {"success": True}
        wait_for(lambda: _states(server)["fake"] == "loading", 10, "the load")
        assert server.client.get("/health").status_code == 503
        wait_for(lambda: _states(server)["fake"] == "loaded", 20, "it")
        health = server.client.get("/health").json()
        assert (health["status"], health["loaded_models"], health["model_loaded"]) == ("ok", ["fake"], True)
