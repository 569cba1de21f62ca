"""Context shift with tiny models of every kind of memory: after it, an answer is that of the remaining tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddock.scheduling import ContextShift
from tests.engine.harness import Harness
from tests.options import draft_params

_SHIFT = ContextShift(keep=20)
_TEXT = " ".join(f"the {n} of mare and in an{n}" for n in range(8))


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", ["llama", "sliding_window", "hybrid"])
def test_an_answer_goes_on_from_the_remaining_tokens(tiny_models: dict[str, Path], kind: str, unified: bool) -> None:
    options: dict[str, Any] = {"parallel": 1, "n_ctx": 256, "kv_unified": unified}
    harness = Harness(tiny_models[kind], **options)
    n_ctx = harness.engine.info.n_ctx
    request = harness.ask(1, _TEXT, max_tokens=320, shift=_SHIFT)
    prompt = list(request.tokens)
    harness.run()
    answer = harness.answers[1]
    harness.close()
    assert len(answer) == 320
    fresh = Harness(tiny_models[kind], **options)
    history, done = prompt, 0
    while done < len(answer):
        part = fresh.alone(done, "", tokens=history, max_tokens=min(n_ctx - len(history), len(answer) - done))
        assert answer[done : done + len(part)] == part
        history, done = history + part, done + len(part)
        dropped = _SHIFT.dropped(n_ctx)
        history = history[: dropped.start] + history[dropped.stop :]
    fresh.close()


@pytest.mark.parametrize("unified", [True, False])
def test_others_with_the_same_prefix_are_unaffected(tiny_models: dict[str, Path], unified: bool) -> None:
    options: dict[str, Any] = {"parallel": 3, "n_ctx": 768, "kv_unified": unified}
    alone = Harness(tiny_models["llama"], **options)
    others = [f"{_TEXT} and {end}" for end in ("mare", "foal")]
    expected = [alone.alone(id, text, max_tokens=60) for id, text in enumerate(others)]
    alone.close()
    harness = Harness(tiny_models["llama"], **options)
    shifting = harness.ask(9, _TEXT, max_tokens=800, shift=_SHIFT)
    while not shifting.is_shifted:
        harness.step()
    for id, text in enumerate(others):
        harness.ask(id, text, max_tokens=60)
    harness.run()
    assert len(harness.answers[9]) == 800
    assert [harness.answers[id] for id in range(2)] == expected
    harness.close()


def test_drafts_go_on_after_a_shift(tiny_models: dict[str, Path]) -> None:
    options: dict[str, Any] = {"parallel": 1, "n_ctx": 256}
    plain = Harness(tiny_models["llama"], **options)
    expected = plain.alone(1, _TEXT, max_tokens=300, shift=_SHIFT)
    plain.close()
    harness = Harness(tiny_models["llama"], **options, model_draft=str(tiny_models["draft"]))
    draft = harness.ask(1, _TEXT, max_tokens=300, shift=_SHIFT, draft=_params(harness))
    harness.run()
    assert harness.answers[1] == expected
    assert draft.drafted > 0
    harness.close()


def _params(harness: Harness) -> Any:
    assert harness.engine.info.draft_slots > 0
    return draft_params(p_min=0.0, priced=False)
