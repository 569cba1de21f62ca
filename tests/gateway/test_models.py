"""Model cards: metadata of the files, without loading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai

from tests.server import Server, events, wait_for


def test_card_shows_the_metadata_of_the_file(tiny_models: dict[str, Path], demo_model: Path) -> None:
    with Server("-m", str(demo_model), "-a", "small, tiny,", "--tags", "b, a", "-c", "512", "-np", "2") as server:
        listed = server.client.get("/v1/models").json()
        assert server.client.get("/models").json() == listed
        (card,) = listed["data"]
        meta = card.pop("meta")
        assert card.pop("created") > 0
        assert card == {
            "id": "small",
            "object": "model",
            "owned_by": "local",
            "kind": "generation",
            "aliases": ["tiny", demo_model.stem],
            "tags": ["a", "b"],
            "status": {"value": "unloaded"},
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "source": None,
            "can_remove": False,
        }
        (described,) = listed["models"]
        assert (described["name"], described["capabilities"]) == ("small", ["completion"])
        assert described["details"]["quantization_level"] == "Q4_1"
        assert meta == {
            "architecture": "llama",
            "quantization": "Q4_1",
            "ftype": "Q4_1",
            "vocab_type": 2,
            "n_vocab": 49152,
            "n_ctx_train": 8192,
            "n_ctx": None,
            "n_embd": 576,
            "n_params": meta["n_params"],
            "size": demo_model.stat().st_size,
            "loaded": False,
        }
        assert 134_000_000 < meta["n_params"] < 165_000_000
        props = server.client.get("/props").json()
        assert (props["model_ftype"], props["ui"]) == ("Q4_1", True)
        assert server.workers() == [], "looking wakes nothing"
        assert server.chat("Hi", max_tokens=1, model="tiny")["model"] == "small", "answers show the id"
        card = server.client.get("/v1/models/small").json()
        assert server.client.get(f"/v1/models/{demo_model.stem}").json()["id"] == "small"
        assert card["status"] == {"value": "loaded"}
        assert (card["meta"]["loaded"], card["meta"]["n_ctx"]) == (True, 256)


def test_one_of_many_models(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    for name, path in tiny_models.items():
        (tmp_path / f"{name}.gguf").symlink_to(path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no model")
    (tmp_path / "c.json").write_text('{"model_manager": {"models": {"draft": {"aliases": ["d"], "tags": ["small"]}}}}')
    with Server("--models-dir", str(tmp_path), "--config", str(tmp_path / "c.json")) as server:
        listed = server.client.get("/v1/models").json()
        assert "models" not in listed
        cards = {card["id"]: card for card in listed["data"]}
        assert (cards["llama"]["source"], cards["draft"]["source"]) == ("models_dir", "preset")
        assert (cards["draft"]["aliases"], cards["draft"]["tags"]) == (["d"], ["small"])
        assert cards["llama"]["meta"]["ftype"] == "all F32"
        assert server.client.get("/v1/models/d").json()["id"] == "draft"
        assert set(tiny_models) < set(cards)
        assert cards["recurrent"]["meta"]["architecture"] == "mamba"
        assert cards["llama"]["meta"]["quantization"] == "F32"
        assert cards["broken"]["meta"]["architecture"] is None
        assert "too short" in cards["broken"]["status"]["problem"]
        assert cards["llama"]["status"] == {"value": "unloaded"}
        assert server.client.get("/v1/models/hybrid.gguf").json() == cards["hybrid"]
        missing = server.client.get("/v1/models/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            assert client.models.retrieve("llama").id == "llama"
            assert {model.id for model in client.models.list()} == set(cards)
        assert server.workers() == []


def test_status_of_a_running_and_of_a_failed_load(tmp_path: Path) -> None:
    models = {"slow": {"path": "fake:load=4"}, "wrong": {"path": "fake:nonsense=1"}}
    (tmp_path / "c.json").write_text(json.dumps({"model_manager": {"models": models}}))

    def status(name: str) -> dict[str, Any]:
        told: dict[str, Any] = server.client.get(f"/v1/models/{name}").json()["status"]
        return told

    with Server("--config", str(tmp_path / "c.json")) as server:
        assert server.client.post("/models/load", json={"model": "slow"}).status_code == 200
        wait_for(lambda: status("slow")["value"] == "loading", 10, "the load to begin")
        assert 0 <= status("slow")["progress"] <= 1
        wait_for(lambda: status("slow") == {"value": "loaded"}, 20, "the load")
        with server.client.stream("GET", "/models/sse") as response:
            stream = (json.loads(data) for _, data in events(response))
            assert server.client.post("/admin/load", json={"model": "wrong"}).status_code == 503
            told = next(event for event in stream if event["data"].get("problem"))
        assert (told["model"], told["data"]["status"]) == ("wrong", "unloaded")
        assert "nonsense" in told["data"]["problem"]
        assert status("wrong") == {"value": "unloaded", "failed": True, "problem": told["data"]["problem"]}
