"""The lab's commands without matplotlib and rich: help is shown, and a run names the missing packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tiers import full

_WITHOUT = """
import sys
sys.modules["matplotlib"] = sys.modules["rich"] = None
from paddock.cli import main
main(sys.argv[1:])
"""
_COMMANDS = [["bench"], ["lab", "prefix-cache"], ["lab", "determinism"], ["lab", "routing"]]


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    """In a new process, because this one has imported the packages already."""
    return subprocess.run([sys.executable, "-c", _WITHOUT, *args], capture_output=True, text=True, check=False)


def test_experiments_are_listed_without_their_packages() -> None:
    listed = _run("lab", "--help").stdout
    assert all(name in listed for name in ("prefix-cache", "determinism", "routing"))


@full
@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_help_needs_no_packages_and_a_run_names_the_missing_ones(command: list[str]) -> None:
    shown = _run(*command, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "--out" in shown.stdout
    refused = _run(*command)
    assert refused.returncode == 1
    assert "the lab needs matplotlib and rich: pip install paddock-lab" in refused.stderr
