"""Install packages with uv, which needs a fifth of pip's time, in the way that pip is configured on this machine.

uv is taken from the PATH, or downloaded by pip for this one installation. Whatever goes wrong, the caller uses pip.
Standard library only.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_UV = "uv==0.13.8"
_SAME_IN_UV = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""pip's settings of where packages come from, with uv's variables and what separates values in them."""
_WITHOUT_EFFECT = {
    "break-system-packages", "config-file", "disable-pip-version-check", "no-cache-dir", "no-color", "no-input",
    "no-warn-script-location", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action", "verbose",
}  # fmt: skip
"""pip's settings that do not decide what is installed."""


def install(folder: Path, log: Path, arguments: Iterable[str]) -> bool:
    """Install into the environment in this folder what `pip install ARGUMENTS` would. False: pip is needed."""
    python = str(folder / "bin" / "python")
    settings = _run_pip(python, "config", "list")
    environment = uv_environment(settings) if settings is not None else None
    if environment is None:
        return False
    with _uv(folder, python) as uv:
        if uv is None:
            return False
        command = [uv, "pip", "install", "--python", python, "--compile-bytecode", *arguments]
        everything = os.environ | environment
        if sys.stdout.isatty():  # uv shows its progress
            return subprocess.run(command, env=everything).returncode == 0
        with log.open("w", encoding="utf-8") as file:
            return subprocess.run(command, env=everything, stdout=file, stderr=file).returncode == 0


def uv_environment(settings: str) -> dict[str, str] | None:
    """The variables for uv that mean what `pip config list` says. None if it has a setting that uv does not have."""
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best version of all indexes
    for line in settings.splitlines():
        scoped, _, literal = line.partition("=")
        name = scoped.rpartition(".")[2]
        if name in _WITHOUT_EFFECT:
            continue
        if name not in _SAME_IN_UV:
            return None
        try:
            value = str(ast.literal_eval(literal))
        except (SyntaxError, ValueError):
            return None
        variable, separator = _SAME_IN_UV[name]
        found[variable] = separator.join(value.split())
    return found


@contextmanager
def _uv(folder: Path, python: str) -> Iterator[str | None]:
    if (uv := shutil.which("uv")) is not None:
        yield uv
        return
    with tempfile.TemporaryDirectory(dir=folder) as name:
        download = ("install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", name, _UV)
        yield None if _run_pip(python, *download) is None else str(Path(name) / "bin" / "uv")


def _run_pip(python: str, *arguments: str) -> str | None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout if done.returncode == 0 else None
