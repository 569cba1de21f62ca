from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ModelManagerSettings
from paddock.errors import InvalidRequest, ModelNotFound, StartupError
from paddock.fleet import Catalogue, Model, open_catalogue
from paddock.fleet.catalogue.files import find_models
from tests import tiny_models, tiny_projectors
from tests.options import new_model


def _write(path: Path, architecture: str = "llama", *, kind: str = "model", tensors: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type(kind)
    for number in range(tensors):
        writer.add_tensor(f"blk.{number}.attn_k.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _open(directory: Path, **settings: Any) -> Catalogue:
    return open_catalogue(ModelManagerSettings(models_directory=directory, **settings))


def _problems(catalogue: Catalogue) -> dict[str, str | None]:
    return {model.name: model.problem() for model in catalogue}


def test_directories_are_searched_recursively(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("B.gguf", "deep/er/a.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    catalogue = open_catalogue(ModelManagerSettings(models_directory=tmp_path, default_model="B.gguf"))
    assert sorted(model.name for model in catalogue) == ["B", "a"]
    assert catalogue.find(None).name == "B"


def test_lookup_by_name() -> None:
    catalogue = Catalogue([new_model("Qwen3-8B", "/q", aliases=("chat",)), new_model("Other", "/o")])
    for name in ("Qwen3-8B", "Qwen3-8B.gguf", "chat"):
        assert catalogue.find(name).name == "Qwen3-8B"
    with pytest.raises(ModelNotFound, match=r"'qwen3-8b'.*did you mean 'Qwen3-8B'"):
        catalogue.find("qwen3-8b")
    with pytest.raises(InvalidRequest, match="no default_model"):
        catalogue.find(None)


def test_a_single_model_matches_any_name(demo_model: Path) -> None:
    catalogue = open_catalogue(ModelManagerSettings(model=demo_model))
    assert catalogue.find("llama-2-7b").path == str(demo_model)
    assert catalogue.find(None).path == str(demo_model)


def test_the_demo_model_is_the_default(demo_model: Path) -> None:
    assert [model.path for model in open_catalogue(ModelManagerSettings())] == [str(demo_model)]


def test_startup_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"nonsense, but long enough to parse")
    for settings, why in (
        (ModelManagerSettings(model=tmp_path / "none.gguf"), "does not exist"),
        (ModelManagerSettings(model=tmp_path / "broken.gguf"), "not with 'GGUF'"),
        (ModelManagerSettings(models_directory=tmp_path / "none"), "does not exist"),
        (ModelManagerSettings(models_directory=tmp_path, default_model="brokn"), "did you mean 'broken'"),
    ):
        with pytest.raises(StartupError, match=why):
            open_catalogue(settings)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_links_to_files_are_models_and_a_folder_is_read_once(tmp_path: Path) -> None:
    shelf, models = tmp_path / "shelf", tmp_path / "models"
    _write(shelf / "far.gguf")
    _write(models / "deep" / "own.gguf")
    (models / "shelf").symlink_to(shelf)
    (models / "again").symlink_to(models / "deep")
    (models / "a-link.gguf").symlink_to(models / "deep" / "own.gguf")
    (models / "deep" / "loop").symlink_to(models)
    (shelf / "back").symlink_to(models)
    (models / "gone.gguf").symlink_to(tmp_path / "nowhere.gguf")
    (models / "round.gguf").symlink_to(models / "round.gguf")
    (models / ".hidden.gguf").write_bytes(b"x")
    assert _problems(_open(models)) == {
        "own": None,
        "a-link": None,
        "far": None,
        "gone": "No such file or directory",
        "round": "Too many levels of symbolic links",
    }


def test_an_entry_of_the_settings_hides_its_own_link_only(tmp_path: Path) -> None:
    _write(tmp_path / "real.gguf")
    (tmp_path / "soft.gguf").symlink_to(tmp_path / "real.gguf")
    (tmp_path / "hard.gguf").hardlink_to(tmp_path / "real.gguf")
    named = {"soft": {"n_ctx": 512}, "other": {"path": "hard.gguf"}}
    catalogue = _open(tmp_path, models=named)
    assert {model.name: Path(model.path).name for model in catalogue} == {
        "soft": "soft.gguf",
        "other": "hard.gguf",
        "real": "real.gguf",
    }
    assert [model.options.n_ctx for model in catalogue if model.name == "soft"] == [512]


def test_split_models(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        _write(tmp_path / f"big-0000{number}-of-00003.gguf", tensors=0 if number == 1 else 2)
    (whole,) = _open(tmp_path)
    assert (whole.name, whole.problem(), whole.header().tensor_count) == ("big", None, 4)
    assert whole.path.endswith("big-00001-of-00003.gguf")
    assert whole.description().size == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert open_catalogue(ModelManagerSettings(model=tmp_path / "big-00002-of-00003.gguf")).find("").path == whole.path
    data = (tmp_path / "big-00003-of-00003.gguf").read_bytes()
    (tmp_path / "big-00003-of-00003.gguf").write_bytes(data[:-100])
    assert "big-00003-of-00003.gguf: it is truncated" in str(_problems(_open(tmp_path))["big"])
    (tmp_path / "big-00003-of-00003.gguf").unlink()
    (tmp_path / "big-00001-of-00003.gguf").unlink()
    assert _problems(_open(tmp_path)) == {"big": "2 of its 3 parts are missing: 1, 3"}
    (tmp_path / "big-00002-of-00003.gguf").rename(tmp_path / "big-00002-of-09999.gguf")
    assert _problems(_open(tmp_path)) == {"big": "9998 of its 9999 parts are missing: 1 and 9997 others"}


def test_the_projector_of_a_model(tmp_path: Path) -> None:
    """One that fits lies beside it, or the settings name it."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    tiny_models.llama(tmp_path / "one" / "eye.gguf", layers=1)
    for name in ("mmproj-eye-bf16", "mmproj-eye-f16"):
        tiny_projectors.llava(tmp_path / "one" / f"{name}.gguf")
    _write(tmp_path / "two" / "other.gguf")
    tiny_projectors.llava(tmp_path / "two" / "mmproj.gguf")
    models = {model.name: model for model in _open(tmp_path)}
    assert models["eye"].options.mmproj == str(tmp_path / "one" / "mmproj-eye-f16.gguf")
    assert models["eye"].media() == ("image",)
    assert models["other"].options.mmproj == "", "its embeddings have another size"
    without = {model.name: model for model in _open(tmp_path, mmproj_auto=False)}
    assert (without["eye"].options.mmproj, without["eye"].media()) == ("", ())
    with_it, plain = (found["eye"].estimate(gpu=False) for found in (models, without))
    assert with_it is not None
    assert plain is not None
    size = (tmp_path / "one" / "mmproj-eye-f16.gguf").stat().st_size
    assert 0.9 * size < with_it.host.weights - plain.host.weights < size
    named = _open(tmp_path, mmproj_auto=False, models={"other": {"mmproj": "two/mmproj.gguf"}})
    assert named.named("other").options.mmproj == str(tmp_path / "two" / "mmproj.gguf")
    wrong = _open(tmp_path, models={"other": {"mmproj": "one/eye.gguf"}})
    assert "it is a model, not a projector" in (wrong.named("other").problem() or "")
    missing = _open(tmp_path, models={"other": {"mmproj": "no.gguf"}})
    assert "no.gguf: No such file" in (missing.named("other").problem() or "")


def test_projectors(tmp_path: Path) -> None:
    _write(tmp_path / "sees" / "eye.gguf")
    _write(tmp_path / "sees" / "mmproj-eye-f16.gguf", "clip")
    _write(tmp_path / "blind.gguf")
    _write(tmp_path / "alone" / "mmproj.gguf", "clip")
    catalogue = _open(tmp_path)
    assert {model.name: len(model.projectors) for model in catalogue} == {"eye": 1, "blind": 0}
    assert any("without a model beside it" in note for note in catalogue.notes)


def test_files_that_are_not_models(tmp_path: Path) -> None:
    _write(tmp_path / "words.gguf", tensors=0)
    _write(tmp_path / "lora.gguf", kind="adapter")
    _write(tmp_path / "projector.gguf", "clip")
    _write(tmp_path / "matrix.gguf", kind="imatrix")
    (tmp_path / "broken.gguf").write_bytes(b"nonsense, but long enough to parse")
    problems = _problems(_open(tmp_path))
    for name, why in {
        "words": "no weights",
        "lora": "adapter",
        "projector": "multimodal projector",
        "matrix": "importance matrix",
        "broken": "not with 'GGUF'",
    }.items():
        assert why in str(problems[name])


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_nearest_to_the_top_gets_the_name(tmp_path: Path) -> None:
    for place in ("b/x.gguf", "a/deep/x.gguf", "y.gguf"):
        _write(tmp_path / place)
    catalogue = _open(tmp_path)
    assert {model.name: Path(model.path).relative_to(tmp_path).as_posix() for model in catalogue} == {
        "y": "y.gguf",
        "x": "b/x.gguf",
        "a/deep/x": "a/deep/x.gguf",
    }
    assert ["'a/deep/x'" in note for note in catalogue.notes] == [True]


def test_names_in_the_settings_win(tmp_path: Path) -> None:
    _write(tmp_path / "models" / "x.gguf")
    _write(tmp_path / "models" / "deep" / "chat.gguf")
    _write(tmp_path / "elsewhere.gguf")
    models = {
        "x": {"path": tmp_path / "elsewhere.gguf"},
        "big": {"path": "deep/chat.gguf", "aliases": ["chat", "gpt-4"]},
        "small": {"path": "deep/chat.gguf", "n_ctx": 512},
        "y": {},
    }
    catalogue = _open(tmp_path / "models", models=models)
    assert sorted(model.name for model in catalogue) == ["big", "small", "x", "y"]
    assert catalogue.find("x").path == str(tmp_path / "elsewhere.gguf")
    assert catalogue.find("gpt-4") is catalogue.find("big")
    assert "no file" in str(catalogue.find("y").problem())
    assert any("x.gguf is not served" in note for note in catalogue.notes)
    with pytest.raises(StartupError, match="'a' and 'b' share the name 'c'"):
        _open(tmp_path / "models", models={"a": {"aliases": ["c"]}, "b": {"aliases": ["c"]}})
    with pytest.raises(StartupError, match="share the name 'a'"):
        _open(tmp_path / "models", models={"a": {}, "a.gguf": {}})


def test_settings_of_a_single_model(tmp_path: Path) -> None:
    _write(tmp_path / "a.gguf")
    models = {"a.gguf": {"aliases": ["b"], "n_ctx": 512}, "c": {"n_ctx": 1}}
    (model,) = open_catalogue(ModelManagerSettings(model=tmp_path / "a.gguf", alias=["d"], models=models))
    assert (model.name, model.aliases, model.options.n_ctx) == ("d", ("b", "a"), 512)


def test_a_missing_file_does_not_stop_the_server(tmp_path: Path) -> None:
    _write(tmp_path / "horse.gguf")
    catalogue = _open(tmp_path, models={"hores": {}})
    assert _problems(catalogue)["horse"] is None
    assert any("did you mean 'horse'" in note for note in catalogue.notes)


# ── settings of one model ────────────────────────────────────────────────────────────────────────────────────────────


def test_settings_of_one_model(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    for name in ("a", "b", "c"):
        _write(tmp_path / f"{name}.gguf")
    catalogue = _open(
        tmp_path,
        n_ctx=2048,
        n_threads=3,
        chat_template_file=template,
        reranking=True,
        models={
            "a": {
                "n_ctx": 512,
                "parallel": 2,
                "chat_template": "{{ bos_token }}",
                "idle_timeout": 5,
                "pooling": "mean",
            },
            "b.gguf": {"n_ctx": 2048, "chat_template": None, "kv_unified": False},
        },
    )
    a, b, c = (catalogue.find(name) for name in "abc")
    assert (a.options.n_ctx, a.options.n_threads, a.options.parallel, a.options.kv_unified) == (512, 3, 2, False)
    assert (a.options.chat_template, a.settings.idle_timeout, a.requested.pooling) == ("{{ bos_token }}", 5, "mean")
    assert (b.options.chat_template, b.options.kv_unified, b.settings.idle_timeout) == ("", False, 300)
    assert (c.options.n_ctx, c.options.chat_template, c.options.kv_unified) == (2048, "{{ messages }}", True)
    assert (b.requested.pooling, c.requested.pooling) == ("rank", "rank")


def test_unreadable_chat_template(tmp_path: Path) -> None:
    _write(tmp_path / "a.gguf")
    with pytest.raises(StartupError, match=r"model 'a': cannot read the chat template .*none.jinja"):
        _open(tmp_path, models={"a": {"chat_template_file": tmp_path / "none.jinja"}})
    with pytest.raises(StartupError, match="mutually exclusive"):
        _open(tmp_path, models={"a": {"chat_template_file": tmp_path / "t", "chat_template": "{{ x }}"}})


# ── rescan ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_catalogues_are_equal_until_a_file_changes(tmp_path: Path) -> None:
    _write(tmp_path / "a.gguf")
    _write(tmp_path / "b.gguf")
    before = _open(tmp_path)
    assert _open(tmp_path) == before
    assert _open(tmp_path, models={"a": {"n_ctx": 512}}) != before
    assert _open(tmp_path, models={"a": {"n_ctx": 512}}).find("b") == before.find("b")
    os.utime(tmp_path / "a.gguf", ns=(1, 1))
    after = _open(tmp_path)
    assert after != before
    assert after.find("b") == before.find("b")
    (tmp_path / "b.gguf").unlink()
    assert _open(tmp_path) != after


@given(st.data())
def test_every_name_of_a_file_is_found_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    top = tmp_path_factory.mktemp("tree")
    folders = [top]
    for name in data.draw(st.lists(st.sampled_from("pqrs"), max_size=5)):
        folders.append(data.draw(st.sampled_from(folders)) / name)
        folders[-1].mkdir(exist_ok=True)
    real = set()
    for name in data.draw(st.lists(st.sampled_from("abc"), max_size=6)):
        path = data.draw(st.sampled_from(folders)) / f"{name}.gguf"
        path.write_bytes(b"")
        real.add(str(path))
    for number in range(data.draw(st.integers(0, 4))):
        target = data.draw(st.sampled_from([*folders, *map(Path, sorted(real))]))
        link = data.draw(st.sampled_from(folders)) / f"link{number}{target.suffix}"
        if target.suffix and data.draw(st.booleans()):
            link.hardlink_to(target)
        else:
            link.symlink_to(target)
        if target.suffix:
            real.add(str(link))
    found, _ = find_models(top)
    assert sorted(one.files[0].path for one in found) == sorted(real)
    link = tmp_path_factory.mktemp("other") / "link"
    link.symlink_to(top)
    assert [one.relative_path for one in find_models(link)[0]] == [one.relative_path for one in found]
    catalogue = _open(top)
    assert len(catalogue) == len(real)
    assert {model.path for model in catalogue} == real


def test_draft_model_problems(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    directory = tiny_models["llama"].parent

    def model(name: str = "llama", **settings: Any) -> Model:
        return _open(directory, models={name: settings}).find(name)

    draft = model(model_draft="draft.gguf")
    assert draft.problem() is None
    assert draft.options.model_draft == str(directory / "draft.gguf")
    both, alone = draft.estimate(gpu=False), model().estimate(gpu=False)
    assert both is not None and alone is not None and both.total > alone.total
    _write(tmp_path / "lora.gguf", kind="adapter")
    assert "lora.gguf: it is a LoRA adapter" in (model(model_draft=tmp_path / "lora.gguf").problem() or "")
    assert "no.gguf: No such file" in (model(model_draft="no.gguf").problem() or "")
    part = tmp_path / "a-00001-of-00002.gguf"
    part.write_bytes(b"x")
    assert "its draft model is incomplete: 1 of its 2 parts" in (model(model_draft=part).problem() or "")
    assert "needs a model that generates text" in (model("embedding", model_draft="draft.gguf").problem() or "")
    assert "use fake:draft=4" in (model("f", path="fake:", model_draft="draft.gguf").problem() or "")
    with pytest.raises(StartupError, match="needs a single model"):
        _open(directory, model_draft="draft.gguf")


def test_a_changed_draft_model_changes_the_model(tmp_path: Path, demo_model: Path) -> None:
    file = tmp_path / "draft.gguf"
    _write(file)
    settings = ModelManagerSettings(model=demo_model, model_draft=file)
    before = open_catalogue(settings)
    assert before == open_catalogue(settings)
    _write(file, tensors=2)
    assert before != open_catalogue(settings)


def test_preload(tmp_path: Path) -> None:
    def preloaded(**settings: Any) -> list[str]:
        catalogue = open_catalogue(ModelManagerSettings(**settings))
        return [model.name for model in catalogue if model.preload]

    fakes = {"a": {"path": "fake:"}, "b": {"path": "fake:"}}
    assert preloaded(model="fake:") == ["fake"]
    assert preloaded(model="fake:", lazy=True) == []
    assert preloaded(models=fakes) == []
    assert preloaded(models=fakes, default_model="b") == []
    assert preloaded(models=fakes, default_model="b", lazy=False) == ["b"]
    assert preloaded(models={"a": {"path": "fake:", "preload": True}}, lazy=True) == ["a"], (
        "the setting of a model wins"
    )
    with pytest.raises(StartupError, match="default_model"):
        preloaded(models=fakes, lazy=False)


def test_several_models_are_preloaded_by_name_and_by_pattern(tmp_path: Path) -> None:
    fakes = {"a-1": {"path": "fake:", "aliases": ["one"]}, "a-2": {"path": "fake:"}, "b": {"path": "fake:"}}

    def preloaded(*names: str, **settings: Any) -> list[str]:
        catalogue = open_catalogue(ModelManagerSettings(models=fakes, preload=list(names), **settings))
        return [model.name for model in catalogue if model.preload]

    assert preloaded("b", "one") == ["a-1", "b"]
    assert preloaded("a-*") == ["a-1", "a-2"]
    assert preloaded("default", "b", default_model="a-2") == ["a-2", "b"]
    assert preloaded("c-*") == []
    with pytest.raises(StartupError, match=r"--preload.*'a-3' not found"):
        preloaded("a-3")
    with pytest.raises(StartupError, match=r"--preload without a name .* needs default_model"):
        preloaded("default")
