"""The workflows and hooks call only targets and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
_FILES = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".pre-commit-config.yaml", ROOT / ".ci" / "run"]


@pytest.mark.parametrize("file", _FILES, ids=lambda path: path.name)
def test_make_targets_and_paths_exist(file: Path) -> None:
    text = "\n".join(line for line in file.read_text("utf-8").splitlines() if not line.lstrip().startswith("#"))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= _TARGETS
    for path in re.findall(r"(?:uses: |\s)((?:\./\.github|tools|src|lab)/[\w./-]+)", text):
        assert (ROOT / path).exists(), path


def test_hooks_use_the_tools_of_the_environment() -> None:
    """A hook with a repository of its own would need the network, and another version than `make check`."""
    text = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert set(re.findall(r"repo: (\S+)", text)) == {"local"}
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}
    assert all(entry.startswith(".venv/bin/") for entry in re.findall(r"entry: (\S+)", text))


def test_both_distributions_have_the_same_version() -> None:
    versions = [
        tomllib.loads((ROOT / file).read_text("utf-8"))["project"]["version"]
        for file in ("pyproject.toml", "lab/pyproject.toml")
    ]
    assert versions[0] == versions[1]
    lab = tomllib.loads((ROOT / "lab/pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    assert f"paddock-llm=={versions[0]}" in lab
