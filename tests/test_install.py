"""`make install`: versions side by side, and a link that is switched from one to another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paddock.cli.service import current_python

ROOT = Path(__file__).parents[1]


def _install(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "install.py"), str(folder), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _version(folder: Path, name: str, *, complete: bool = True) -> Path:
    python = folder / "versions" / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    if complete:
        (folder / "versions" / name / ".complete").touch()
    return python


def test_another_version_is_used_and_the_old_one_again(tmp_path: Path) -> None:
    old, new = _version(tmp_path, "0.1.0-old"), _version(tmp_path, "0.1.0-new")
    for name in ("0.1.0-old", "0.1.0-new", "0.1.0-old"):
        done = _install(tmp_path, "use", name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "current").resolve().name == name
        assert f"* {name}" in _install(tmp_path, "list").stdout.splitlines()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "versions"]
    assert current_python(old) == tmp_path / "current" / "bin" / "python", "what a unit runs changes with the link"
    assert current_python(new) == new, "a version that is tried beside it is meant itself"


def test_what_is_not_complete_is_not_used(tmp_path: Path) -> None:
    _version(tmp_path, "0.1.0-good")
    broken = _version(tmp_path, "0.1.0-broken", complete=False)
    assert _install(tmp_path, "use", "0.1.0-good").returncode == 0
    done = _install(tmp_path, "use", "0.1.0-broken")
    assert done.returncode == 1 and "installed versions: 0.1.0-good" in done.stderr
    assert (tmp_path / "current").resolve().name == "0.1.0-good"
    assert current_python(broken) == broken


def test_an_environment_that_is_no_version_is_run_by_its_own_path(tmp_path: Path) -> None:
    assert current_python(tmp_path / ".venv" / "bin" / "python") == tmp_path / ".venv" / "bin" / "python"
