"""`paddock service`, with a temporary home folder and a stub of systemctl that logs its calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.cli.unit import Unit
from tests.forking import run_command

_STUB = """#!/bin/sh
echo "$@" >> "$STUB_LOG"
case "$*" in *fails*) exit 5 ;; *status*) exit 3 ;; esac
"""


class _Machine:
    """A temporary home folder, and the calls of systemctl."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.log = folder / "log"
        programs = folder / "bin"
        for each in (self.home, programs):
            each.mkdir()
        (programs / "systemctl").write_text(_STUB)
        (programs / "systemctl").chmod(0o755)
        self.config = self.home / "my config.json"
        self.config.write_text('{"server": {"shutdown_grace": 40}, "model_manager": {"model": "fake:"}}')
        ours = {key: value for key, value in os.environ.items() if key != "XDG_CONFIG_HOME"}
        self._env = {
            **ours, "HOME": str(self.home), "STUB_LOG": str(self.log), "PATH": f"{programs}:{os.environ['PATH']}",
        }  # fmt: skip
        self.unit = self.home / ".config" / "systemd" / "user" / "paddock.service"

    def service(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_command("service", *args, env={**self._env, **environment}, cwd=self.home)

    def calls(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> _Machine:
    return _Machine(tmp_path)


def test_install_status_and_uninstall(machine: _Machine) -> None:
    done = machine.service("install", "--config", "my config.json")
    assert done.returncode == 0, done.stderr
    assert machine.calls() == ["--user daemon-reload", "--user enable --now paddock"]
    assert "journalctl --user -u paddock -f" in done.stdout
    text = machine.unit.read_text()
    assert f'ExecStart="{sys.executable}" "-m" "paddock" "serve" "--config" "{machine.config}"\n' in text
    assert f"WorkingDirectory={machine.home}\n" in text
    assert "TimeoutStopSec=70\n" in text, "longer than shutdown_grace"

    assert machine.service("install", "--config", "my config.json").returncode == 0
    assert machine.calls()[-1] == "--user restart paddock", "the new unit is started"

    assert machine.service("status").returncode == 3, "the exit status of systemctl"
    assert machine.calls() == ["--user --no-pager status paddock"]

    done = machine.service("uninstall")
    assert done.returncode == 0, done.stderr
    assert machine.calls() == ["--user disable --now paddock", "--user daemon-reload"]
    assert not machine.unit.exists()
    assert machine.config.exists()


def test_install_under_another_name(machine: _Machine) -> None:
    """A service can keep the name of the server that it replaces."""
    assert machine.service("install", "--config", "my config.json", "--name", "llama-cpp-server").returncode == 0
    assert machine.calls()[-1] == "--user enable --now llama-cpp-server"
    assert machine.unit.with_name("llama-cpp-server.service").exists()


def test_print_changes_nothing(machine: _Machine) -> None:
    done = machine.service("install", "--print", PADDOCK_CONFIG=str(machine.config))
    assert f'"{machine.config}"' in done.stdout
    assert machine.calls() == []
    assert not machine.unit.exists()


def test_an_error_is_one_line(machine: _Machine) -> None:
    (machine.home / "bad.json").write_text('{"server": {"prot": 1}}')
    (machine.home / "none.json").write_text('{"model_manager": {"models_directory": "nowhere"}}')
    for args, why in (
        (("install", "--config", "bad.json"), "did you mean"),
        (("install", "--config", "none.json"), "nowhere does not exist"),
        (("install", "--config", "my config.json", "--name", "a/b"), "is not a valid service name"),
        (("install", "--config", "my config.json", "--account", "me"), "--account needs --system"),
        (("install", "--config", "my config.json", "--name", "fails"), "enable --now fails failed with status 5"),
        (("uninstall",), "does not exist, or was not written by"),
    ):
        done = machine.service(*args)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("paddock: ") and why in done.stderr and done.stderr.count("\n") == 1
    done = machine.service("install", "--config", "my config.json", PATH=str(machine.home))
    assert "systemctl was not found" in done.stderr
    assert not machine.unit.exists()


def test_a_foreign_unit_is_not_changed(machine: _Machine) -> None:
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/usr/bin/something-else\n")
    for args in (("install", "--config", "my config.json"), ("uninstall",)):
        done = machine.service(*args)
        assert done.returncode == 1 and "was not written by" in done.stderr
    assert "something-else" in machine.unit.read_text()
    assert machine.calls() == []


def test_a_dynamic_user_must_be_able_to_read_all_paths(machine: _Machine) -> None:
    machine.config.chmod(0o600)
    done = machine.service("install", "--system", "--print", "--config", "my config.json")
    assert done.returncode == 1 and "cannot read" in done.stderr
    done = machine.service("install", "--system", "--print", "--config", "my config.json", "--account", "me")
    assert done.returncode == 0, done.stderr
    assert "User=me\n" in done.stdout and "DynamicUser" not in done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("account", [None, "root"])
def test_systemd_accepts_the_unit(tmp_path: Path, system: bool, account: str | None) -> None:
    odd = tmp_path / 'a "b" $c %h \\d'
    odd.mkdir()
    unit = Unit(
        (sys.executable, "-m", "paddock", "serve", "--config", str(odd / "config.json")), folder=odd, system=system,
        account=account, groups=("video",), writable=(odd,),
    )  # fmt: skip
    file = tmp_path / "paddock.service"
    file.write_text(unit.text())
    done = subprocess.run(
        ["systemd-analyze", *([] if system else ["--user"]), "verify", str(file)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_does_not_block_gpus() -> None:
    """With any of these settings GPU drivers fail, and llama.cpp falls back to the CPU."""
    for system in (False, True):
        text = Unit(("/usr/bin/true",), system=system).text()
        for closed in ("PrivateDevices", "ProtectClock", "DeviceAllow", "MemoryDenyWriteExecute"):
            assert closed not in text


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemctl was not found")
@pytest.mark.parametrize(("system", "target"), [(True, "multi-user.target"), (False, "default.target")])
def test_the_unit_can_be_enabled_and_disabled(tmp_path: Path, system: bool, target: str) -> None:
    """With the real systemctl: `--root` works on files and needs no running systemd."""
    units = tmp_path / "etc" / "systemd" / ("system" if system else "user")
    units.mkdir(parents=True)
    (units / "llama-cpp-server.service").write_text(Unit(("/usr/bin/true",), system=system).text())

    def control(word: str) -> str:
        command = ["systemctl", f"--root={tmp_path}", *([] if system else ["--global"]), word, "llama-cpp-server"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()

    control("enable")
    assert (units / f"{target}.wants" / "llama-cpp-server.service").is_symlink()
    assert control("is-enabled") == "enabled"
    control("disable")
    assert control("is-enabled") == "disabled"


def test_the_unit_filters_system_calls_and_keeps_memory_for_the_machine() -> None:
    for system in (False, True):
        lines = Unit(("/x",), system=system).text().splitlines()
        assert "SystemCallFilter=~@privileged" in lines
        (allowed,) = [line for line in lines if line.startswith("SystemCallFilter=@system-service")]
        assert "landlock_restrict_self" in allowed and "seccomp" in allowed, "or workers could not confine themselves"
        assert "MemoryMax=90%" in lines
        assert ("ProtectProc=invisible" in lines) == ("ProtectKernelModules=yes" in lines) == system


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_security_score_is_that_of_the_documents(tmp_path: Path) -> None:
    file = tmp_path / "paddock.service"
    file.write_text(Unit(("/usr/bin/true",), system=True).text())
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot look at a unit that is not installed")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
