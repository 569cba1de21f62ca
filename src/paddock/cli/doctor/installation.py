"""Is everything installed that is needed, and which versions?"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from paddock import __version__
from paddock.cli.doctor.finding import Finding

_ABOUT = "installation"
_TOLD = ("llama-cpp-python", "llguidance", "uvicorn")
_NAME = re.compile(r"[A-Za-z0-9._\-]+")


def check_installation(required: list[str], installed: dict[str, str]) -> Finding:
    """`required` as a package's metadata has it, `installed` by name."""
    names = [match[0] for entry in required if "extra ==" not in entry and (match := _NAME.match(entry))]
    missing = [name for name in names if name not in installed]
    if missing:
        return Finding(
            "problem",
            _ABOUT,
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "the environment is damaged: remove .venv and run `make serve`, or pip install paddock again",
        )
    told = ", ".join(f"{name} {installed[name]}" for name in _TOLD if name in installed)
    where = "in " + sys.prefix
    return Finding("ok", _ABOUT, f"paddock {__version__} with {told}, Python {platform.python_version()} {where}")


def look_at_installation() -> Iterator[Finding]:
    required = metadata.requires("paddock") or []
    installed = {}
    for entry in required:
        match = _NAME.match(entry)
        if match is None:
            continue
        try:
            installed[match[0]] = metadata.version(match[0])
        except metadata.PackageNotFoundError:
            continue
    yield check_installation(required, installed)
