"""Which libraries must be tried with a tiny model before a model is loaded with them, and which have been.

The checks at load (`engine/libllama/layout.py`) cannot see every difference of a struct. That does not matter for the
builds that Paddock is tested with. Any other library, such as one of the system, is in doubt, even if its release is
known: `0.5.0-dev` is any commit after 0.5.0.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from paddock import __version__
from paddock.libraries.builds import PINNED, cache_folder
from paddock.libraries.cache_file import read_cached, write_cached
from paddock.libraries.cpu import this_cpu
from paddock.libraries.identity import build_id
from paddock.libraries.search import BUILT, PACKAGE, PREBUILT, VARIABLES, Found, candidates

_TESTED = {PREBUILT: PACKAGE, PINNED.name: f"{PINNED.name}=={PINNED.version}"}
"""The releases of packages that Paddock is tested with, by origin."""
_FILE = "tried.json"
_MOST_KEPT = 50


def is_in_doubt(found: Found, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is none of the builds that Paddock is tested with. `paddock build` has tried what it made. A
    variable may name one of them too.
    """
    others = {name: value for name, value in environment.items() if name not in VARIABLES}
    path = found.path.resolve()
    same = next((each for each in candidates(others) if each.path.resolve() == path), None)
    return same is None or not (same.origin == BUILT or _release(same.origin) == _TESTED.get(same.origin, ""))


def was_tried(path: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether these very files have passed the trial, on such a CPU and of this version of Paddock."""
    return _key(path) in _passed(environment)


def note_trial(path: Path, environment: Mapping[str, str] = os.environ) -> None:
    """They have passed it."""
    passed = [key for key in _passed(environment) if key != _key(path)]
    write_cached(_file(environment), [*passed, _key(path)][-_MOST_KEPT:])


def _release(package: str) -> str | None:
    try:
        return f"{package}=={metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


def _key(path: Path) -> str:
    about = (__version__, str(path.resolve()), build_id(path), this_cpu())
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _passed(environment: Mapping[str, str]) -> list[str]:
    return read_cached(_file(environment), list[str]) or []


def _file(environment: Mapping[str, str]) -> Path:
    return cache_folder(environment) / _FILE
