"""A library that Paddock is not tested with decodes a tiny model before a user's model is loaded with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.fleet.process.library_trial import try_library
from paddock.libraries import VARIABLE, find_library
from tests.engine.fake_library import ALWAYS_ZERO, NEEDS_COMPILER, compile_library
from tests.forking import run_command
from tests.server import Server, wait_for
from tests.tiers import full

_PASSED = "a tiny model was computed correctly with this libllama"
_CRASHES = "a process that decodes a tiny model with it ends with SIGABRT"
_WRONG = "a tiny model that counts says 0 after 0"
_FAILS = "cannot load counting.gguf: libllama gave no reason"


def _crashing(folder: Path) -> Path:
    load = "void *llama_model_load_from_file(void) { abort(); }"
    return compile_library(folder, bodies={"llama_model_load_from_file": load}).path


def _wrong(folder: Path) -> Path:
    return compile_library(folder, bodies=ALWAYS_ZERO).path


def _failing(folder: Path) -> Path:
    load = "void *llama_model_load_from_file(void) { return 0; }"
    return compile_library(folder, bodies={"llama_model_load_from_file": load}).path


@full
@NEEDS_COMPILER
@pytest.mark.parametrize(("make", "problem"), [(_crashing, _CRASHES), (_wrong, _WRONG), (_failing, _FAILS)])
def test_a_library_that_fails_the_trial_is_refused(
    make: Callable[[Path], Path], problem: str, tmp_path: Path, tiny_models: dict[str, Path]
) -> None:
    """Each has the known structs and all functions."""
    path = make(tmp_path)
    assert try_library(path).problem == problem
    env = {VARIABLE: str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    line = f"cannot use {path} ({VARIABLE}): {problem}: pip install xllamacpp=="
    with Server("-m", str(tiny_models["llama"]), env=env) as server:
        for _ in range(2):  # a failure is not kept
            response = server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "library_unusable")
            assert error["message"].startswith(line) and "\n" not in error["message"]
        assert server.workers() == []
    done = run_command("doctor", env=os.environ | env, cwd=tmp_path)
    assert done.returncode == 1
    (found,) = [each for each in done.stdout.splitlines() if each.startswith("problem") and "library" in each.split()]
    assert line in found


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The library of the tests in another folder, where it is in doubt."""
    found = find_library()
    assert found is not None
    folder = tmp_path / "copied"
    folder.mkdir()
    for file in found.path.parent.glob("lib*") if found.path.name.startswith("lib") else [found.path]:
        shutil.copy2(file, folder, follow_symlinks=False)
    return folder / found.path.name


def test_a_library_in_doubt_is_tried_once(copied: Path, tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    env = {VARIABLE: str(copied), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for is_first in (True, False):
        with Server("-m", str(tiny_models["llama"]), env=env) as server:
            response = server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
            assert response.status_code == 200, response.text
            assert server.client.get("/props").json()["libllama"]["path"] == str(copied)
        assert any(_PASSED in line for line in server.output) == is_first
    done = run_command("doctor", env=os.environ | env, cwd=tmp_path)
    assert "Paddock was not tested with this build" not in done.stdout
    (tmp_path / "cache" / "paddock" / "libllama" / "tried.json").unlink()
    done = run_command("doctor", env=os.environ | env, cwd=tmp_path)
    assert "Paddock was not tested with this build: a tiny model was computed correctly with it" in done.stdout


def test_the_library_of_the_default_dependency_is_not_tried(demo_server: Server) -> None:
    found = find_library()
    assert found is not None
    if found.origin not in ("xllamacpp", "paddock build"):
        pytest.skip(f"the tests use a library of {found.origin}")
    demo_server.chat("Hello", max_tokens=1)
    wait_for(lambda: demo_server.workers(), 30, "a worker")
    assert not any(_PASSED in line for line in demo_server.output)
