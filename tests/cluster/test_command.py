"""`paddock cluster` without a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paddock.cli.app import main


def test_missing_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "paddock.cluster" or name.startswith("paddock.cluster.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(main, ["cluster", "status"])
    assert done.exit_code == 1
    assert done.output == "paddock: Ray is not installed: pip install 'paddock-llm[cluster]'\n"


def test_configuration_errors_come_first(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"cluster": {"gateway": 2}}))
    done = CliRunner().invoke(main, ["cluster", "deploy", "--config", str(file)])
    assert done.exit_code == 1
    assert "unknown setting 'cluster.gateway'" in done.output
    assert "did you mean 'cluster.gateways'?" in done.output


def test_no_cluster(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"model_manager": {"model": "fake:"}}))
    done = CliRunner().invoke(main, ["cluster", "status", "--config", str(file), "--address", "nonsense"])
    assert done.exit_code == 1
    assert done.output.startswith("paddock: no connection to a Ray cluster at nonsense (")
    assert "ray start --head" in done.output


def test_serve_config(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"model_manager": {"models": {"a b": {"path": "fake:"}}}, "cluster": {"name": "pens"}}))
    done = CliRunner().invoke(main, ["cluster", "config", str(file)])
    assert done.exit_code == 0, done.output
    gateway, model = json.loads(done.output)["applications"]
    assert (gateway["name"], gateway["args"]) == ("pens", {"config": str(file)})
    assert model["args"] == {"config": str(file), "model": "a b"}
    assert model["name"].startswith("pens-a-b-")
