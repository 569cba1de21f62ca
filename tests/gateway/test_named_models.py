"""Models with settings of their own, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server import Server, chat_body, wait_for


def test_each_model_is_loaded_with_its_settings(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "upper.jinja").write_text("{% for m in messages %}<{{ m.content | upper }}>{% endfor %}")
    models = {
        "loud": {"path": "fake:", "aliases": ["gpt-4"], "chat_template_file": str(tmp_path / "upper.jinja")},
        "quiet": {"path": "fake:", "n_ctx": 300, "parallel": 3},
        "thinks": {
            "path": "fake:",
            "chat_template": "{% if enable_thinking %}<think>{% endif %}{{ reasoning_effort }}",
        },
        "tiny": {"path": str(tiny_models["llama"]), "n_ctx": 256, "chat_template": "{{ messages[0].content }}!"},
        "lost": {},
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_manager": {"parallel": 2, "models": models}}))
    with Server("--config", str(tmp_path / "config.json")) as server:

        def props(model: str) -> dict[str, object]:
            body: dict[str, object] = server.client.get("/props", params={"model": model}).json()
            return body

        def rendered(model: str) -> str:
            body = {"model": model, **chat_body("hello")}
            return str(server.client.post("/apply-template", json=body).json()["prompt"])

        assert (props("loud")["total_slots"], props("quiet")["total_slots"]) == (2, 3)
        assert "upper" in str(props("loud")["chat_template"]), "known before it is loaded"
        assert props("thinks")["thinking"] == {"can_switch": True, "has_effort": True}
        assert props("tiny")["thinking"] == {"can_switch": False, "has_effort": False}
        assert server.workers() == []
        assert rendered("gpt-4") == "<HELLO>"
        assert rendered("quiet").startswith("<|im_start|>")
        assert rendered("tiny") == "hello!"
        assert props("tiny")["chat_template"] == "{{ messages[0].content }}!"
        assert server.client.get("/v1/models/tiny").json()["meta"]["n_ctx"] == 256
        refused = server.client.post("/v1/chat/completions", json={"model": "lost", **chat_body("hello")})
        assert refused.status_code == 503
        assert "no file with that name" in refused.json()["error"]["message"]
        assert "no file with that name" in server.client.get("/v1/models/lost").json()["status"]["problem"]


def test_a_template_from_the_command_line(tmp_path: Path) -> None:
    with Server("-m", "fake:", "--chat-template", "{{ messages[0].content }}?") as server:
        assert server.client.post("/apply-template", json=chat_body("why")).json()["prompt"] == "why?"


def test_a_new_file_is_served_without_a_reload(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "one.gguf").symlink_to(tiny_models["llama"])
    config = tmp_path / "config.json"
    manager = {"models_directory": str(folder), "watch_interval": 0.05}
    config.write_text(json.dumps({"model_manager": manager}))

    def names() -> set[str]:
        return {model["id"] for model in server.client.get("/v1/models").json()["data"]}

    with Server("--config", str(config)) as server:
        assert server.client.post("/completion", json={"prompt": "a", "model": "two"}).status_code == 404
        one = server.client.post("/completion", json={"prompt": "a", "n_predict": 1, "model": "one"})
        assert one.status_code == 200
        workers = server.workers()
        (folder / "below").mkdir()
        (folder / "below" / "two.gguf").symlink_to(tiny_models["caller"])
        wait_for(lambda: names() == {"one", "two"}, 20, "the new file to be seen")
        two = server.client.post("/completion", json={"prompt": "a", "n_predict": 1, "model": "two"})
        assert two.status_code == 200
        assert set(workers) <= set(server.workers()), "the other model is not touched"
        (folder / "below" / "two.gguf").unlink()
        wait_for(lambda: names() == {"one"}, 20, "the file to be missed")
        (folder / "one.gguf").unlink()
        wait_for(lambda: any("directory is empty" in line for line in server.output), 20, "it to be noticed")
        assert names() == {"one"}, "a disk that is not mounted takes nothing away"
