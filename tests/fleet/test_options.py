"""A setting of a model and the engine's option of the same name agree, so that each option is declared once."""

from __future__ import annotations

from paddock.config import ModelSettings
from paddock.fleet.catalogue.options import COPIED, computed_options, engine_options
from paddock.types import EngineOptions

_PER_REPLICA = {"repack", "devices"}


def test_every_option_of_the_engine_comes_from_the_settings() -> None:
    computed = computed_options(ModelSettings(), verbose=False)
    assert {*COPIED, *computed} == set(EngineOptions.__struct_fields__) - _PER_REPLICA


def test_a_copied_option_has_the_default_of_its_setting() -> None:
    computed = computed_options(ModelSettings(), verbose=False)
    for name in set(COPIED) - computed.keys() - {"n_threads"}:  # the default of n_threads depends on the machine
        assert getattr(EngineOptions(), name) == ModelSettings.model_fields[name].default, name


def test_a_changed_setting_reaches_the_engine() -> None:
    settings = ModelSettings(n_ctx=512, cont_batching=False, flash_attn="off", n_threads=3)
    options = engine_options(settings, verbose=True)
    assert (options.n_ctx, options.cont_batching, options.flash_attn) == (512, False, "off")
    assert (options.n_threads, options.verbose) == (3, True)
