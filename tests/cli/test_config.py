from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from paddock.cli import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(*args: str, **environ: str) -> Result:
        return CliRunner().invoke(main, ["config", *args], env=environ)

    return call


def test_show_prints_values_and_their_sources(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"server": {"host": "0.0.0.0"}}')
    flags = ("--config", str(file), "-c", "4096", "--api-key", "hunter2", "-v")
    result = run("show", *flags, PADDOCK_SERVER__PORT="9000")
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert lines["server.host"].split() == ['"0.0.0.0"', "file", str(file)]
    assert lines["server.port"].split() == ["9000", "environment", "PADDOCK_SERVER__PORT"]
    assert lines["server.metrics"].split() == ["true", "default"]
    assert lines["model_manager.n_ctx"].split() == ["4096", "flag", "--ctx-size"]
    assert lines["server.log_level"].split() == ['"DEBUG"', "flag", "--verbose"]
    assert "hunter2" not in result.output
    found = json.loads(run("show", *flags, "--json").output)
    assert found["server.host"] == {"value": "0.0.0.0", "source": "file", "from": str(file)}
    assert found["server.api_keys"] == {"value": ["***"], "source": "flag", "from": "--api-key"}


def test_check_reports_errors(run: Any, tmp_path: Path) -> None:
    assert run("check").exit_code == 0
    (tmp_path / "config.json").write_text('{"server": {"port": true}}')
    for command in ("check", "show"):
        result = run(command, "--config", "config.json")
        assert result.exit_code == 1
        assert result.output == "paddock: server.port in config.json: Input should be a valid integer (got True)\n"
