"""The settings declare each option of a model once. The engine and the fleet have no defaults of their own."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from paddock.config import ModelManagerSettings, ModelSettings
from paddock.errors import StartupError
from paddock.fleet import Model
from paddock.fleet.catalogue.options import engine_options
from paddock.types import DraftParams, EngineOptions

SETTINGS = ModelSettings.model_fields
CONVERTED = {
    *("n_gpu_layers", "parallel", "kv_unified", "deterministic", "chat_template", "model_draft", "mmproj"),
    *("tensor_split", "override_kv", "cpu_strict_batch", "prio_batch"),
    *("n_gpu_layers_draft", "rpc", "cache_disk"),
}
"""Settings that are optional, `auto`, a path or parsed from text, and that the engine gets as a plain value."""


@pytest.mark.parametrize("options", [EngineOptions, DraftParams])
def test_the_engine_declares_no_defaults(options: type[msgspec.Struct]) -> None:
    assert [field.name for field in msgspec.structs.fields(options) if not field.required] == []


def test_the_fleet_declares_no_defaults_of_settings() -> None:
    declared = {field.name for field in fields(Model) if field.default is not MISSING}
    assert declared & SETTINGS.keys() == set()


def test_an_option_has_the_type_of_its_setting() -> None:
    types = get_type_hints(EngineOptions)
    differing = {name for name in types.keys() & SETTINGS.keys() if types[name] != SETTINGS[name].annotation}
    assert differing == CONVERTED


def test_a_changed_setting_reaches_the_engine() -> None:
    settings = ModelSettings(n_ctx=512, cont_batching=False, flash_attn="off", n_threads=3, draft_max=7)
    options = engine_options(settings, verbose=True)
    assert (options.n_ctx, options.cont_batching, options.flash_attn) == (512, False, "off")
    assert (options.n_threads, options.verbose, options.draft.n_max) == (3, True, 7)
    assert (options.is_default_ctx, engine_options(ModelSettings(), verbose=False).is_default_ctx) == (False, True)


@pytest.mark.parametrize(
    ("settings", "is_kept"),
    [
        ({}, False),
        ({"spec_type": "none", "model_draft": "draft.gguf"}, False),
        ({"spec_type": "ngram", "deterministic": True}, False),
        ({"spec_type": "ngram"}, True),
        ({"model_draft": "draft.gguf"}, True),
    ],
    ids=str,
)
def test_earlier_states_are_kept_if_guesses_were_asked_for(settings: dict[str, Any], is_kept: bool) -> None:
    assert (engine_options(ModelSettings(**settings), verbose=False).max_rolled_back > 0) == is_kept


def test_the_folder_of_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    sized = engine_options(ModelSettings(cache_disk="cache:1.5G"), verbose=False)
    assert (sized.cache_disk, sized.cache_disk_bytes) == (str(tmp_path / "cache"), 3 << 29)
    odd = engine_options(ModelSettings(cache_disk="~/a:b"), verbose=False)
    assert odd.cache_disk == str(tmp_path / "home" / "a:b"), "what follows the colon is no size"
    assert 0 < odd.cache_disk_bytes <= 32 << 30
    assert engine_options(ModelSettings(), verbose=False).cache_disk == ""
    with pytest.raises(StartupError, match=r"cache_disk \(--cache-disk\) needs host memory.*cache_ram"):
        engine_options(ModelSettings(cache_disk="cache", cache_ram=0), verbose=False)
    with pytest.raises(ValueError, match="a size above 0"):
        ModelSettings(cache_disk="cache:0")


@pytest.mark.parametrize("off", [False, "off", ""])
def test_one_model_may_keep_no_prefixes_on_disk(off: bool | str) -> None:
    models = {"off": {"cache_disk": off}, "own": {"cache_disk": "/b:1G"}, "usual": {}}
    manager = ModelManagerSettings.model_validate({"cache_disk": "/a", "models": models})
    assert [manager.settings_for(name).cache_disk for name in models] == [None, "/b:1G", "/a"]
    assert manager.cache_folders == [Path("/a"), Path("/b")]
