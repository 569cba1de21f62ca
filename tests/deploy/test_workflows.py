"""The workflows of the repository are valid YAML and call make targets that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def _commands(workflow: Any) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text("utf-8"))
    called = re.findall(r"\bmake ([a-z-]+)", "\n".join(_commands(workflow)))
    assert called
    assert set(called) <= TARGETS
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_every_other_file_is_valid() -> None:
    others = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    assert all(yaml.safe_load(file.read_text("utf-8")) for file in others)


def test_hooks_use_the_tools_of_the_environment() -> None:
    """A hook with a repository of its own would need the network, and another version than `make check`."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert all(hook["language"] == "system" for hook in repository["hooks"])
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repository["hooks"])


def test_both_distributions_have_the_same_version() -> None:
    server, lab = (
        tomllib.loads((ROOT / file).read_text("utf-8"))["project"] for file in ("pyproject.toml", "lab/pyproject.toml")
    )
    assert server["version"] == lab["version"]
    assert f"paddock-llm=={server['version']}" in lab["dependencies"]
