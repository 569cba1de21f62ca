"""The libllama that the tests use. `PADDOCK_TEST_LIBRARY` chooses one: `prebuilt` is that of the default dependency,
`compiled` the one that `paddock build` made. Without it the tests use what a user of this machine would.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from paddock.fleet.process.native import ask_build
from paddock.libraries import BUILT, PREBUILT, VARIABLE, VARIABLES, Found, candidates, find_library

CHOICE = "PADDOCK_TEST_LIBRARY"
_ORIGINS = {"prebuilt": PREBUILT, "compiled": BUILT}
_HINTS = {"prebuilt": "pip install .", "compiled": "make native"}


def chosen_library(environment: Mapping[str, str]) -> Found | None:
    """The library that the variable chooses; None: it is not set. Raises `pytest.UsageError`."""
    choice = environment.get(CHOICE)
    if not choice:
        return None
    if choice not in _ORIGINS:
        raise pytest.UsageError(f"{CHOICE} is {choice!r}: it must be one of {', '.join(_ORIGINS)}")
    others = {name: value for name, value in environment.items() if name not in VARIABLES}
    found = next((each for each in candidates(others) if each.origin == _ORIGINS[choice]), None)
    if found is None:
        raise pytest.UsageError(f"there is no {choice} libllama here: `{_HINTS[choice]}` makes one")
    return found


def pinned(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that let workers use the chosen library. Nothing is pinned where they do so anyway: the tests then
    find it as users do.
    """
    chosen, used = chosen_library(environment), find_library(environment)
    return {} if chosen is None or (used is not None and used.path == chosen.path) else {VARIABLE: str(chosen.path)}


def describe() -> str:
    """A line for the header of pytest: what a worker says of its library."""
    build = ask_build()
    if build.failure:
        return f"libllama: {build.failure}"
    features = [name for name in build.features if name.startswith(("AVX", "AMX", "NEON", "DOTPROD", "SVE", "CUDA"))]
    commit = f"commit {build.commit[:9] or 'unknown'}, build {build.build_id[:12]}"
    return f"libllama: {build.path} ({build.origin}), llama.cpp {build.version}, {commit}, {' '.join(features)}"
