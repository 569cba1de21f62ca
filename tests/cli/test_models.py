from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.forking import run_command


def _models(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command("models", *args, cwd=cwd)


def test_the_table(tiny_models: dict[str, Path], demo_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "demo.gguf").symlink_to(demo_model)
    (folder / "mamba.gguf").symlink_to(tiny_models["recurrent"])
    (folder / "broken.gguf").write_bytes(b"GGUF but no model, as one can see")
    (folder / "big-00001-of-00002.gguf").write_bytes(b"")
    done = _models("--models-dir", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == [
        "NAME",
        "ARCHITECTURE",
        "PARAMETERS",
        "QUANTISATION",
        "CONTEXT",
        "SIZE",
        "MEMORY",
        "PREFIXES",
    ]
    rows = {line.split()[0]: line for line in lines}
    assert rows["demo"].split()[1:8] == ["llama", "135", "M", "Q4_1", "8192", "93.8", "MiB"]
    assert rows["mamba"].split()[1] == "mamba"
    assert "cannot be loaded: its GGUF version is" in rows["broken"]
    assert "cannot be loaded: 1 of its 2 parts are missing: 2" in rows["big"]
    assert "\x1b" not in done.stdout


def test_two_links_to_a_file_are_two_models(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "one.gguf").symlink_to(tiny_models["llama"])
    (tmp_path / "two.gguf").symlink_to(tiny_models["llama"])
    done = _models("--models-dir", str(tmp_path), "--json", cwd=tmp_path)
    assert [model["name"] for model in json.loads(done.stdout)] == ["one", "two"], done.stderr


def test_as_json_and_by_the_settings(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    def memory(**settings: object) -> dict[str, int]:
        models = {"tiny": {"path": str(tiny_models["llama"]), "aliases": ["t"], **settings}}
        (tmp_path / "c.json").write_text(json.dumps({"model_manager": {"models": models}}))
        done = _models("--config", "c.json", "--json", cwd=tmp_path)
        (model,) = json.loads(done.stdout)
        assert (model["name"], model["aliases"], model["kind"], model["problem"]) == ("tiny", ["t"], "generation", None)
        host: dict[str, int] = model["memory"]["host"]
        return host

    small, large = memory(n_ctx=512), memory(n_ctx=2048)
    assert large["weights"] == small["weights"]
    assert large["cache"] == 4 * small["cache"]


def test_an_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"model_manager": {"models": {"a": {"n_ctz": 1}}}}')
    for args, why in (
        (("--models-dir", "nowhere"), "does not exist"),
        (("--config", "c.json"), "did you mean 'n_ctx'"),
    ):
        done = _models(*args, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("paddock: ") and why in done.stderr and done.stderr.count("\n") == 1


def test_listing_imports_no_native_code(tiny_models: dict[str, Path]) -> None:
    """Nor a web server or numpy, so that it is fast."""
    code = (
        "import sys; from paddock.cli import main\n"
        f"try: main(['models', '--models-dir', {str(tiny_models['llama'].parent)!r}])\n"
        "finally: assert not {'llama_cpp', 'numpy', 'fastapi', 'uvicorn', 'jinja2'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "hybrid" in done.stdout
