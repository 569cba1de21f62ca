"""The trial of a library: a tiny model counts, and a model is measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddock.engine import trial
from paddock.engine.counting_model import N_VOCAB, write_counting_model
from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import ContextParams
from paddock.errors import LibraryUnusable


def test_the_library_of_the_tests_counts() -> None:
    assert trial.wrong_answer(on_gpu=False) is None


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "write_counting_model", partial(write_counting_model, step=2))
    assert trial.wrong_answer(on_gpu=False) == "a tiny model that counts says 2 after 0"


def test_numbers_that_are_not_finite_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial._Loaded, "logits", lambda *_: np.full((1, N_VOCAB), np.nan, np.float32))
    assert trial.wrong_answer(on_gpu=False) == "the logits of a tiny model are not finite numbers"


def test_a_wrong_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(trial._Loaded, "copy", lambda *_: None)
        assert trial.wrong_answer(on_gpu=False) == "a tiny model answers differently in a copy of a sequence"
    with monkeypatch.context() as patched:
        patched.setattr(trial._Loaded, "save", lambda *_: None)
        assert trial.wrong_answer(on_gpu=False) == "the state of a sequence cannot be saved and restored"
    monkeypatch.setattr(trial._Loaded, "restore", lambda *_: True)
    assert trial.wrong_answer(on_gpu=False) == "a tiny model answers differently in a sequence that was restored"


def test_a_layout_that_was_not_asked_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a library had one more boolean before kv_unified."""
    create = lib.llama_init_from_model

    def misread(model: Any, params: Any) -> Any:
        params = ContextParams.from_buffer_copy(params)
        params.kv_unified = False
        return create(model, params)

    monkeypatch.setattr(lib, "llama_init_from_model", misread)
    with pytest.raises(LibraryUnusable, match="kv_unified True became False"):
        trial.wrong_answer(on_gpu=False)


def test_the_speed_of_a_model(tiny_models: dict[str, Path]) -> None:
    found = trial.speed(tiny_models["llama"], threads=1)
    assert found.prompt > 0 and found.stream > 0
