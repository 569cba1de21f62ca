"""`paddock import ollama`: the models of a store, served in place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ollama
import pytest
from click.testing import CliRunner

from paddock.cli import main
from tests import tiny_projectors
from tests.server import Server
from tests.tiers import full

_KIND = "application/vnd.ollama.image."
_CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}<|im_end|>"
)


class Store:
    """An Ollama store, made by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True)

    def blob(self, content: bytes | Path) -> str:
        digest = hashlib.sha256(content.read_bytes() if isinstance(content, Path) else content).hexdigest()
        path = self.folder / "blobs" / f"sha256-{digest}"
        if isinstance(content, Path) and not path.exists():
            path.symlink_to(content)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        return f"sha256:{digest}"

    def add(self, place: str, **layers: bytes | Path) -> None:
        path = self.folder / "manifests" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        listed = [{"mediaType": _KIND + kind, "digest": self.blob(content)} for kind, content in layers.items()]
        path.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))


@pytest.fixture
def store(tmp_path: Path, demo_model: Path, tiny_models: dict[str, Path]) -> Store:
    store = Store(tmp_path / "store")
    parameters = {"stop": ["<|im_end|>"], "num_predict": 3, "temperature": 0, "num_ctx": 512, "odd": 1}
    store.add(
        "registry.ollama.ai/library/smol/135m",
        model=demo_model,
        template=_CHATML.encode(),
        system=b"You are terse.",
        params=json.dumps(parameters).encode(),
        messages=json.dumps([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]).encode(),
    )
    store.add("hf.co/owner/tiny/latest", model=tiny_models["llama"], template=_CHATML.encode())
    store.add("registry.ollama.ai/library/cloud/latest", template=b"x")
    store.add("registry.ollama.ai/library/broken/latest", model=b"no GGUF")
    return store


def _run(*words: str, **env: str) -> Any:
    return CliRunner().invoke(main, ["import", "ollama", *words], env=env, catch_exceptions=False)


@full
def test_the_models_of_a_store_are_served_in_place(store: Store, tmp_path: Path, demo_model: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in store.folder.rglob("*")}
    config, data = tmp_path / "paddock.json", tmp_path / "data"
    config.write_text(
        json.dumps({"server": {"data_dir": str(data)}, "model_manager": {"models": {"own": {"path": "fake:"}}}})
    )
    done = _run(str(store.folder), "--config", str(config))
    assert done.exit_code == 0, done.output
    assert {path: path.lstat().st_mtime_ns for path in store.folder.rglob("*")} == before
    for text in ("cloud is left out: it has no GGUF", "broken is left out", "smol:135m: its Go template is not used"):
        assert text in done.output
    written = json.loads(config.read_text())
    entry = written["model_manager"]["models"]["smol:135m"]
    assert Path(entry["path"]).resolve() == demo_model.resolve() and entry["n_ctx"] == 512
    assert entry["defaults"] == {"temperature": 0.0, "stop": ["<|im_end|>"], "max_tokens": 3}
    assert written["model_manager"]["models"].keys() == {"own", "smol:135m", "hf.co/owner/tiny"}
    with Server("--config", str(config)) as server:
        with ollama.Client(host=server.url) as client:
            assert {model.model for model in client.list().models} >= {"smol:135m", "hf.co/owner/tiny:latest"}
            shown = client.show("smol:135m")
            assert "num_predict" in (shown.parameters or "") and shown.details is not None
            answer = client.chat("smol:135m", messages=[{"role": "user", "content": "What is 1 + 1?"}])
            assert answer.eval_count is not None and answer.eval_count <= 3
            plain = client.chat(
                "smol:135m", messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
            )
            assert plain.prompt_eval_count is not None
        body = {"model": "smol:135m", "messages": [{"role": "user", "content": "Hi"}]}
        other = server.client.post("/v1/chat/completions", json=body).json()
        assert other["usage"]["completion_tokens"] <= 3, "parameters are defaults of all APIs"


def test_a_second_import_changes_nothing_else(store: Store, tmp_path: Path) -> None:
    config, env = tmp_path / "paddock.json", {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    config.write_text(json.dumps({"model_manager": {"models": {"hf.co/owner/tiny": {"path": "mine.gguf"}}}}))
    first = _run(str(store.folder), "--config", str(config), **env)
    assert first.exit_code == 0 and "hf.co/owner/tiny is left as it is" in first.output
    content = config.read_bytes()
    assert _run(str(store.folder), "--config", str(config), **env).exit_code == 0
    assert config.read_bytes() == content
    assert json.loads(content)["model_manager"]["models"]["hf.co/owner/tiny"] == {"path": "mine.gguf"}


def test_what_would_be_written_and_what_is_no_store(store: Store, tmp_path: Path) -> None:
    config = tmp_path / "paddock.json"
    done = _run("--dry-run", "--config", str(config), OLLAMA_MODELS=str(store.folder))
    assert done.exit_code == 0 and "smol:135m" in done.output and not config.exists()
    wrong = _run(str(tmp_path / "nothing"), "--config", str(config))
    assert wrong.exit_code == 1 and "is no Ollama store" in wrong.output


def test_projectors_of_a_store(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    """The one of the manifest is used, in place, and an image reaches the model."""
    projector = tmp_path / "projector"
    tiny_projectors.llava(projector)
    store = Store(tmp_path / "store")
    store.add("registry.ollama.ai/library/eye/latest", model=tiny_models["llama"], projector=projector)
    store.add("registry.ollama.ai/library/odd/latest", model=tiny_models["llama"], projector=tiny_models["llama"])
    store.add("registry.ollama.ai/library/worse/latest", model=tiny_models["llama"], projector=b"no GGUF")
    config = tmp_path / "paddock.json"
    config.write_text(json.dumps({"server": {"data_dir": str(tmp_path / "data")}}))
    done = _run(str(store.folder), "--config", str(config))
    assert done.exit_code == 0, done.output
    assert "odd: its projector for images is not used: the file is no projector" in done.output
    assert "worse: its projector for images is not used" in done.output
    models = json.loads(config.read_text())["model_manager"]["models"]
    assert Path(models["eye"]["mmproj"]).resolve() == projector.resolve()
    assert "mmproj" not in models["odd"] and "mmproj" not in models["worse"]
    with Server("--config", str(config)) as server, ollama.Client(host=server.url) as client:
        image = tiny_projectors.picture(1)
        found = client.chat(
            "eye", messages=[{"role": "user", "content": "what", "images": [image]}], options={"num_predict": 2}
        )
        assert found.prompt_eval_count is not None and found.prompt_eval_count > tiny_projectors.TOKENS
