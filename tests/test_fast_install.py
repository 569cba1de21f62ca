"""The first installation uses uv in the way that pip is configured, and pip where uv cannot do the same."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[1] / "tools" / "fast_install.py"
_spec = importlib.util.spec_from_file_location("fast_install", _PATH)
assert _spec is not None and _spec.loader is not None
fast_install = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fast_install)


def test_packages_come_from_where_pip_takes_them() -> None:
    environment = fast_install.uv_environment(
        "global.index-url='https://mirror.example/simple'\n"
        "install.extra-index-url='https://one.example/simple https://two.example/simple'\n"
        ":env:.find-links='/wheels\\n/more'\n"
        "global.trusted-host='mirror.example'\n"
        ":env:.disable-pip-version-check='1'\n"
    )
    assert environment == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "mirror.example",
    }


@pytest.mark.parametrize("line", ["global.no-index='true'", "global.proxy='http://p:1'", "global.cert=?", "?"])
def test_a_setting_that_uv_does_not_have_leaves_it_to_pip(line: str) -> None:
    assert fast_install.uv_environment(line) is None


@pytest.mark.parametrize("status", [0, 1])
def test_uv_of_the_machine_is_used_and_its_failure_is_told(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv, bin_folder = tmp_path / "tools" / "uv", tmp_path / "venv" / "bin"
    for folder in (uv.parent, bin_folder):
        folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    uv.write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    uv.chmod(0o755)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    log = tmp_path / "log"
    assert fast_install.install(tmp_path / "venv", log, ["--editable", "."]) is (status == 0)
    assert log.read_text().split() == [
        "pip", "install", "--python", str(bin_folder / "python"), "--compile-bytecode", "--editable", ".",
    ]  # fmt: skip
