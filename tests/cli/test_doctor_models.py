"""The checks of `paddock doctor` for models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.doctor.finding import Level, check_folder
from paddock.cli.doctor.models import (
    Need,
    Room,
    check_context,
    check_default,
    check_files,
    check_memory,
    examine_models,
)
from paddock.config import ModelManagerSettings
from paddock.fleet import open_catalogue
from tests.cli.findings import worst

GIB = 1 << 30


def test_models_directory(tmp_path: Path) -> None:
    what = "the models directory", "models"
    assert check_folder(tmp_path, *what).level == "ok"
    missing = check_folder(tmp_path / "none", *what)
    assert missing.level == "problem" and missing.text == f"the models directory {tmp_path}/none does not exist"
    assert f"mkdir -p {tmp_path}/none" in missing.cure
    (tmp_path / "file").touch()
    assert check_folder(tmp_path / "file", *what).level == "problem"


def test_model_files_and_the_default_model(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    def catalogue() -> Any:
        return open_catalogue(ModelManagerSettings(models_directory=tmp_path))

    assert "paddock pull" in worst(check_files(catalogue()))[1]
    (tmp_path / "Good.gguf").symlink_to(tiny_models["llama"])
    assert worst(check_files(catalogue())) == ("ok", "1 model can be served ")
    (tmp_path / "cut.gguf").write_bytes(tiny_models["llama"].read_bytes()[:1000])
    level, text = worst(check_files(catalogue()))
    assert level == "problem" and "cut cannot be loaded" in text and "cut.gguf again" in text
    assert list(check_default(catalogue(), None)) == list(check_default(catalogue(), "Good.gguf")) == []
    level, text = worst(check_default(catalogue(), "good"))
    assert level == "problem" and "did you mean 'Good'" in text and "case-sensitive" in text


def test_each_model_is_checked_with_its_settings(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    (tmp_path / "llama.gguf").symlink_to(tiny_models["llama"])
    room = Room(64 * GIB, 32 * GIB)

    def look(**settings: Any) -> tuple[Level, str]:
        return worst(examine_models(ModelManagerSettings(models_directory=tmp_path, **settings), room))

    assert look()[0] == "ok"
    assert look(n_ctx=2048)[0] == "ok"
    assert "was trained for 2048" in look(n_ctx=4096)[1]
    assert look(n_ctx=4096, parallel=2)[0] == "ok", "each of the two requests has half of it"
    assert "n_ctx" in look(models={"llama": {"n_ctx": 4096}})[1]
    assert look(default_model="llama")[0] == "ok"
    assert look(default_model="other")[0] == "problem"
    assert look(memory_limit=1000)[0] == "ok", "the limit comes from `room`"
    assert look(models={"llama": {"chat_template_file": tmp_path / "none"}})[0] == "problem"


def test_memory() -> None:
    room = Room(total=16 * GIB, free=8 * GIB, gpu=6 * GIB)
    assert worst(check_memory([Need("small", 4 * GIB)], room)) == (
        "ok",
        "8.0 GiB are free; the largest model, small, takes 4.0 GiB ",
    )
    level, text = worst(check_memory([Need("large", 20 * GIB)], room))
    assert level == "problem" and "this machine has 16.0 GiB" in text and "n_ctx" in text
    assert worst(check_memory([Need("middle", 10 * GIB)], room))[0] == "warning"
    level, text = worst(check_memory([Need("small", 4 * GIB)], Room(16 * GIB, 8 * GIB, limit=2 * GIB)))
    assert level == "problem" and "memory_limit allows 2.0 GiB" in text
    level, text = worst(check_memory([Need("on gpu", GIB, gpu=7 * GIB)], room))
    assert level == "warning" and "auto" in text
    level, text = worst(check_memory([Need("wide", 3 * GIB, weights=GIB, cache=2 * GIB)], room))
    assert level == "warning" and "more than its weights" in text
    pinned = [Need("a", 9 * GIB, stays=True), Need("b", 9 * GIB, stays=True)]
    assert "18.0 GiB together" in worst(check_memory(pinned, Room(16 * GIB, 16 * GIB)))[1]
    assert list(check_memory([], room)) == []


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_a_model_that_does_not_fit_is_always_reported(need: int, total: int, free: int) -> None:
    found = list(check_memory([Need("a", need)], Room(total, free)))
    assert (found[0].level == "problem") == (need > total)
    assert (found[0].level == "ok") == (need <= min(total, free))


def test_a_context_beyond_the_trained_length() -> None:
    assert list(check_context("a", None, 2048)) == list(check_context("a", 4096, None)) == []
    assert list(check_context("a", 2048, 2048)) == []
    assert worst(check_context("a", 4096, 2048))[0] == "warning"
