"""Which libllama the tests use."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from paddock.libraries import (
    IDENTITY,
    PINNED,
    VARIABLE,
    Identity,
    cache_folder,
    candidates,
    library_name,
    this_cpu,
)
from paddock.libraries.identity import build_id
from tests.server import Server
from tests.used_library import CHOICE, chosen_library, pinned


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A build in a cache folder of its own."""
    folder = cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) / "builds" / "one"
    folder.mkdir(parents=True)
    (folder / IDENTITY).write_bytes(msgspec.json.encode(Identity(PINNED, (), (), "c++ 12.2", this_cpu(), 1.0)))
    (folder / library_name()).touch()
    return folder / library_name()


def test_workers_use_the_chosen_library(demo_server: Server) -> None:
    demo_server.chat("Hello", max_tokens=1)
    used = demo_server.client.get("/props").json()["libllama"]
    chosen = chosen_library(os.environ) or next(candidates())
    assert (used["path"], used["build_id"]) == (str(chosen.path), build_id(chosen.path))


def test_a_compiled_library_is_not_used_instead_of_the_prebuilt_one(tmp_path: Path, compiled: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    prebuilt = next((each for each in candidates(cache) if each.origin == "xllamacpp"), None)
    if prebuilt is None:
        pytest.skip("the prebuilt library is not installed")
    assert pinned({**cache, CHOICE: "prebuilt"}) == {VARIABLE: str(prebuilt.path)}
    assert pinned({**cache, CHOICE: "prebuilt", VARIABLE: str(compiled)}) == {VARIABLE: str(prebuilt.path)}
    assert pinned({**cache, CHOICE: "compiled"}) == {}, "it is found without a variable"
    assert pinned({**cache, CHOICE: "compiled", VARIABLE: "/none"}) == {VARIABLE: str(compiled)}
    assert pinned(cache) == {}


def test_a_library_that_is_not_here_ends_the_tests(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="there is no compiled libllama here: `make native` makes one"):
        chosen_library({"XDG_CACHE_HOME": str(tmp_path), CHOICE: "compiled"})
    with pytest.raises(pytest.UsageError, match="'other': it must be one of prebuilt, compiled"):
        chosen_library({CHOICE: "other"})
