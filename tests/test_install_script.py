"""install.sh, with stand-ins for the installation and for `paddock`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_INSTALL = """\
import sys
from pathlib import Path
folder, what, extras = sys.argv[1:]
binary = Path(folder) / "current" / "bin" / "paddock"
binary.parent.mkdir(parents=True, exist_ok=True)
binary.write_text('#!/bin/sh\\necho "called: $*"\\n')
binary.chmod(0o755)
print(f"{what} {extras}.")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "install.sh", folder)
    (folder / "tools" / "install.py").write_text(_INSTALL)
    return folder


def _run(checkout: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    home = checkout.parent / "home"
    home.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in ("PREFIX", "XDG_CONFIG_HOME")}
    return subprocess.run(
        ["sh", str(checkout / "install.sh"), *args],
        env={**inherited, "HOME": str(home), "PYTHON": sys.executable, **environment},
        cwd=checkout.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_command_and_the_environment_are_linked(checkout: Path) -> None:
    home = checkout.parent / "home"
    for _ in range(2):  # an upgrade runs it again
        done = _run(checkout, "--extras", "otel,run")
        assert done.returncode == 0, done.stderr
        assert "install otel,run." in done.stdout and "called" not in done.stdout, "no service without a question"
        current = home / ".local" / "share" / "paddock" / "current"
        assert (home / ".local" / "bin" / "paddock").resolve() == current / "bin" / "paddock"
        assert (checkout / "venv").resolve() == current
        assert f"{home}/.local/bin/paddock serve" in done.stdout, "the folder is not on the path"


def test_a_service_with_its_name_and_configuration(checkout: Path) -> None:
    config = checkout.parent / "config.json"
    config.write_text("{}")
    done = _run(checkout, "--service", "--name", "llama-cpp-server", "--config", str(config), "--prefix", "here")
    assert done.returncode == 0, done.stderr
    assert f"called: service install --name llama-cpp-server --config {config}" in done.stdout
    assert (checkout.parent / "home/.local/bin/paddock").resolve() == checkout.parent / "here/current/bin/paddock"


def test_a_service_that_exists_is_to_be_restarted(checkout: Path) -> None:
    units = checkout.parent / "home" / ".config" / "systemd" / "user"
    units.mkdir(parents=True)
    (units / "paddock.service").touch()
    assert "systemctl --user restart paddock" in _run(checkout).stdout


def test_a_command_of_someone_else_is_left_alone(checkout: Path) -> None:
    other = checkout.parent / "home" / ".local" / "bin" / "paddock"
    other.parent.mkdir(parents=True)
    other.write_text("other")
    assert "is left as it is" in _run(checkout).stdout
    assert other.read_text() == "other"


@pytest.mark.parametrize(
    ("module", "problem"),
    [("version", "needs Python 3.11 or newer"), ("venv", "install its venv module")],
)
def test_a_python_that_cannot_be_used(checkout: Path, module: str, problem: str) -> None:
    fake = checkout.parent / "python"
    fake.write_text(f'#!/bin/sh\ncase "$2" in *{module}*) exit 1;; esac\n')
    fake.chmod(0o755)
    done = _run(checkout, PYTHON=str(fake))
    assert done.returncode == 1
    assert problem in done.stderr and not (checkout / "venv").exists()


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--prefix"], "--prefix needs a value"),
        (["--gpu"], "unknown option --gpu"),
        (["--config", "none.json"], "there is no none.json"),
    ],
)
def test_a_wrong_option(checkout: Path, args: list[str], problem: str) -> None:
    done = _run(checkout, *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert problem in done.stderr


def test_outside_of_a_checkout(checkout: Path) -> None:
    (checkout / "tools" / "install.py").unlink()
    done = _run(checkout)
    assert done.returncode == 1 and "has no tools/install.py" in done.stderr
