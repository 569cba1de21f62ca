"""`paddock doctor` as a command, also on a machine with many problems."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from paddock.cli.doctor.finding import Finding
from tests.forking import run_command
from tests.tiers import full


@pytest.fixture(autouse=True)
def _own_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that the developer built is not measured here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _doctor(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command("doctor", *args, cwd=cwd)


def test_a_machine_without_problems(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    settings = {"server": {"port": 0}, "model_manager": {"models_directory": str(tiny_models["llama"].parent)}}
    (tmp_path / "c.json").write_text(json.dumps(settings))
    done = _doctor("--config", "c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "problem  " not in done.stdout and done.stdout.splitlines()[-1].startswith("no problems, ")
    assert "\x1b" not in done.stdout


@full
def test_many_problems(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF but no model, as one can see")
    (tmp_path / "keys").touch(mode=0o644)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        server = {
            "port": busy.getsockname()[1],
            "slot_save_path": "slots",
            "api_key_file": "keys",
            "keys": {"somebody": {"key": "secret"}},
        }
        manager = {"models_directory": "models", "default_model": "none", "cont_batching": False}
        (tmp_path / "c.json").write_text(json.dumps({"server": server, "model_manager": manager}))
        (tmp_path / "c.json").chmod(0o644)
        done = _doctor("--config", "c.json", "--json", cwd=tmp_path)
        assert done.returncode == 1
        found = [Finding(**finding) for finding in json.loads(done.stdout)]
        assert {finding.about for finding in found if finding.level == "problem"} == {"models", "port", "permissions"}
        assert all(finding.cure for finding in found if finding.level != "ok")
        assert any("the configuration, which holds keys, c.json can be read by all users" in f.text for f in found)
        text = _doctor("--config", "c.json", cwd=tmp_path)
    assert text.returncode == 1
    assert f"→ end it (kill {os.getpid()})" in text.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"server": {\n"port": 80,}}', "line 2, column 12"),
        ('{"server": {"prot": 80}}', "did you mean 'server.port'"),
    ],
)
def test_an_invalid_configuration(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "c.json").write_text(text)
    done = _doctor("--config", "c.json", cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stdout and "installation" in done.stdout
