"""The settings declare each option of a model once. The engine and the fleet have no defaults of their own."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import get_type_hints

import msgspec
import pytest

from paddock.config import ModelSettings
from paddock.fleet import Model
from paddock.fleet.catalogue.options import engine_options
from paddock.types import DraftParams, EngineOptions

SETTINGS = ModelSettings.model_fields
CONVERTED = {
    *("n_gpu_layers", "parallel", "kv_unified", "deterministic", "chat_template", "model_draft"),
    *("tensor_split", "override_kv", "cpu_strict_batch", "prio_batch"),
    *("n_gpu_layers_draft", "rpc"),
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
