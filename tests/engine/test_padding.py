"""Padding with libllama: an answer has the same tokens with and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.harness import Harness
from tests.engine.test_draft import EXACT, TEXTS
from tests.scheduling.test_padding import AnyPadding


@pytest.mark.parametrize("unified", [True, False])
def test_padding_changes_no_answer(tiny_models: dict[str, Path], unified: bool) -> None:
    options = {"kv_unified": unified, "n_ctx": 4096, **EXACT}
    harness = Harness(tiny_models["llama"], budget=AnyPadding(3, 40), **options)
    for id, text in enumerate([*TEXTS, TEXTS[1] + "and then", TEXTS[1] + "but it"]):
        harness.ask(id, text, max_tokens=20)
        harness.step()
    harness.run()
    plain = Harness(tiny_models["llama"], **options)
    for id, text in enumerate([*TEXTS, TEXTS[1] + "and then", TEXTS[1] + "but it"]):
        assert harness.answers[id] == plain.alone(id, text, max_tokens=20)
    harness.close()
    plain.close()
