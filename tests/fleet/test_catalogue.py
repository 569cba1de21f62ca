from __future__ import annotations

from pathlib import Path

import pytest

from paddock.config import ModelManagerSettings
from paddock.errors import InvalidRequest, ModelNotFound, StartupError
from paddock.fleet import Catalogue, Model, open_catalogue


def test_a_directory_is_searched_to_the_bottom(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("B.gguf", "deep/er/a.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    catalogue = open_catalogue(ModelManagerSettings(models_directory=tmp_path, default_model="B.gguf"))
    assert sorted(model.name for model in catalogue) == ["B", "a"]
    assert catalogue.find(None).name == "B"


def test_names() -> None:
    catalogue = Catalogue([Model("Qwen3-8B", "/q", aliases=("chat",)), Model("Other", "/o")])
    for name in ("Qwen3-8B", "Qwen3-8B.gguf", "chat"):
        assert catalogue.find(name).name == "Qwen3-8B"
    with pytest.raises(ModelNotFound, match=r"'qwen3-8b'.*did you mean 'Qwen3-8B'"):
        catalogue.find("qwen3-8b")
    with pytest.raises(InvalidRequest, match="no default_model"):
        catalogue.find(None)


def test_a_single_model_answers_to_any_name(demo_model: Path) -> None:
    catalogue = open_catalogue(ModelManagerSettings(model=demo_model))
    assert catalogue.find("llama-2-7b").path == str(demo_model)
    assert catalogue.find(None).path == str(demo_model)


def test_without_a_model_there_is_the_demo(demo_model: Path) -> None:
    assert [model.path for model in open_catalogue(ModelManagerSettings())] == [str(demo_model)]


def test_what_can_never_be_served(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"nonsense, but long enough to be looked at")
    for settings, why in (
        (ModelManagerSettings(model=tmp_path / "none.gguf"), "does not exist"),
        (ModelManagerSettings(model=tmp_path / "broken.gguf"), "does not start with 'GGUF'"),
        (ModelManagerSettings(models_directory=tmp_path / "none"), "does not exist"),
        (ModelManagerSettings(models_directory=tmp_path, default_model="brokn"), "did you mean 'broken'"),
    ):
        with pytest.raises(StartupError, match=why):
            open_catalogue(settings)
