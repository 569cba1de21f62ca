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
DISTRIBUTION = "paddock-llm"
"""The name on the Python index. `paddock` there is another project with the same import name."""
_OTHER = "paddock"
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
            f"the environment is damaged: remove .venv and run `make serve`, or pip install {DISTRIBUTION} again",
        )
    told = ", ".join(f"{name} {installed[name]}" for name in _TOLD if name in installed)
    where = "in " + sys.prefix
    return Finding("ok", _ABOUT, f"paddock {__version__} with {told}, Python {platform.python_version()} {where}")


def check_name(installed: set[str]) -> Finding | None:
    """`installed` holds the names of distributions that are in this environment."""
    if _OTHER in installed:
        return Finding(
            "warning",
            _ABOUT,
            f"the distribution `{_OTHER}` is installed: on the Python index that is another project, with the same "
            "import name",
            f"pip uninstall {_OTHER}, then pip install {DISTRIBUTION} again",
        )
    if DISTRIBUTION not in installed:
        return Finding(
            "warning",
            _ABOUT,
            f"`{DISTRIBUTION}` is not installed in {sys.prefix}: the code runs from its folder, and its dependencies "
            "cannot be checked",
            f"`make serve` in a clone, or pip install {DISTRIBUTION}",
        )
    return None


def look_at_installation() -> Iterator[Finding]:
    finding = check_name({name for name in (DISTRIBUTION, _OTHER) if _version(name) is not None})
    if finding is not None:
        yield finding
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    installed = {}
    for entry in required:
        match = _NAME.match(entry)
        if match is None:
            continue
        if (version := _version(match[0])) is not None:
            installed[match[0]] = version
    yield check_installation(required, installed)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
