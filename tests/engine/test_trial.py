"""The trial of a library: a tiny model counts, and a model is measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from paddock.engine import trial
from paddock.engine.counting_model import N_VOCAB, write_counting_model


def test_the_library_of_the_tests_counts() -> None:
    assert trial.wrong_answer(on_gpu=False) is None


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "write_counting_model", partial(write_counting_model, step=2))
    assert trial.wrong_answer(on_gpu=False) == "a tiny model that counts says 2 after 0"


def test_numbers_that_are_not_finite_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial._Loaded, "logits", lambda *_: np.full((1, N_VOCAB), np.nan, np.float32))
    assert trial.wrong_answer(on_gpu=False) == "the logits of a tiny model are not finite numbers"


def test_the_speed_of_a_model(tiny_models: dict[str, Path]) -> None:
    found = trial.speed(tiny_models["llama"], threads=1)
    assert found.prompt > 0 and found.stream > 0
