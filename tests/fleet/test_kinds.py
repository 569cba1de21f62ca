from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddock.config import ModelManagerSettings
from paddock.errors import ModelLoadFailed, StartupError
from paddock.fleet.catalogue.builder import open_catalogue
from paddock.fleet.catalogue.gguf import Header
from paddock.fleet.catalogue.headers import read_header
from paddock.fleet.catalogue.kinds import RequestedKind, kind_of, pooling_of
from paddock.types import Pooling


def _header(architecture: str, pooling: Any = None, *, classifies: bool = False) -> Header:
    stated = {} if pooling is None else {f"{architecture}.pooling_type": pooling}
    return Header(3, {"general.architecture": architecture, **stated}, {}, 1, 0, classifies)


@pytest.mark.parametrize(
    ("header", "pooling"),
    [
        (_header("llama"), None),
        (_header("llama", 0), None),
        (_header("llama", 99), None),
        (_header("llama", "mean"), None),
        (_header("qwen3", 3), "last"),
        (_header("qwen3", 4, classifies=True), "rank"),
        (_header("bert"), "mean"),
        (_header("bert", 0), "none"),
        (_header("bert", 2), "cls"),
        (_header("bert", 1, classifies=True), "mean"),
        (_header("bert", classifies=True), "rank"),
    ],
)
def test_pooling_from_the_header(header: Header, pooling: Pooling | None) -> None:
    assert pooling_of(header, RequestedKind()) == pooling


def test_requested_pooling_wins() -> None:
    assert pooling_of(_header("llama"), RequestedKind(vectors=True)) == "mean"
    assert pooling_of(_header("llama"), RequestedKind(vectors=True, pooling="last")) == "last"
    assert pooling_of(_header("bert", 1), RequestedKind(vectors=True, pooling="none")) == "none"
    assert pooling_of(_header("bert", 1, classifies=True), RequestedKind(vectors=True, pooling="rank")) == "rank"
    with pytest.raises(ModelLoadFailed, match="no classification head"):
        pooling_of(_header("bert", 1), RequestedKind(vectors=True, pooling="rank"))


def test_requested_kind_from_settings() -> None:
    assert RequestedKind.of(ModelManagerSettings()) == RequestedKind()
    assert RequestedKind.of(ModelManagerSettings(embedding=True)) == RequestedKind(vectors=True)
    both = ModelManagerSettings(embedding=True, reranking=True)
    assert RequestedKind.of(both) == RequestedKind(vectors=True, pooling="rank")
    assert RequestedKind.of(ModelManagerSettings(pooling="cls")) == RequestedKind(vectors=True, pooling="cls")
    with pytest.raises(StartupError, match="reranking needs"):
        RequestedKind.of(ModelManagerSettings(reranking=True, pooling="mean"))


def test_real_files(tiny_models: dict[str, Path]) -> None:
    kinds = {name: kind_of(pooling_of(read_header(path), RequestedKind())) for name, path in tiny_models.items()}
    assert kinds.pop("embedding") == "embedding"
    assert kinds.pop("reranking") == "reranking"
    assert set(kinds.values()) == {"generation"}


def test_a_growing_file_is_read_again(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    data = tiny_models["embedding"].read_bytes()
    (tmp_path / "late.gguf").write_bytes(data[:1000])
    (model,) = open_catalogue(ModelManagerSettings(models_directory=tmp_path))
    assert model.pooling() is None
    (tmp_path / "late.gguf").write_bytes(data)
    assert model.pooling() == "mean"


def test_reranking_needs_a_classification_head(tiny_models: dict[str, Path]) -> None:
    with pytest.raises(StartupError, match="cannot rerank"):
        open_catalogue(ModelManagerSettings(model=tiny_models["embedding"], reranking=True))
