"""Drafts for models with sliding windows: a wrong draft is removed without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.libllama import lib
from paddock.engine.window_drafts import check_window, shorten_drafts
from paddock.errors import DecodeFailed
from paddock.types import Span
from tests.engine.guessing import GuessingHarness
from tests.engine.harness import Harness
from tests.tiers import examples, full
from tests.tiny_models import WINDOW

# Without rounding to half precision a step of another shape gives the same text.
EXACT = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "n_threads": 1}
# The windowed layers have 256 cells then, which longer answers reuse.
FEW_CELLS = {"n_ctx": 2048, "n_ubatch": 64, "chunk": 48}


@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "streams"])
@pytest.mark.parametrize(
    ("kind", "temperature"),
    [pytest.param("sliding_window", 0.0, marks=full), ("sliding_window", 0.9), pytest.param("llama", 0.9, marks=full)],
)
def test_answers_past_the_window_are_the_same_with_any_drafts(
    tiny_models: dict[str, Path], kind: str, kv_unified: bool, temperature: float
) -> None:
    """Several requests at a time, with prompts of others between them."""
    model = tiny_models[kind]
    texts = ["the horse ", "an old mare stands by the brook. " * 3, "in the end it is the other one", "a", "b c d"]
    options: dict[str, Any] = {"kv_unified": kv_unified, **FEW_CELLS, **EXACT}
    plain = Harness(model, **options)
    sizes = [330, 280, 270, 4 * WINDOW, 60]
    asked: list[dict[str, Any]] = [
        {"text": text, "max_tokens": size, "temperature": temperature} for text, size in zip(texts, sizes, strict=True)
    ]
    expected = {id: plain.alone(id, **fields) for id, fields in enumerate(asked)}
    plain.close()
    guessing = GuessingHarness(model, expected, **options)
    for id, fields in enumerate(asked):
        guessing.ask(id, **fields)
        for _ in range(11):
            guessing.step()
    guessing.run()
    assert {id: guessing.answers[id] for id in expected} == expected
    assert 0 < guessing.accepted < guessing.drafted
    guessing.close()


def test_a_window_that_misses_tokens_fails_the_step(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than to continue with a text that the model would not have written."""
    harness = GuessingHarness(tiny_models["sliding_window"], {0: []}, **FEW_CELLS, **EXACT)
    harness.ask(0, "the horse ", max_tokens=20)
    monkeypatch.setattr(lib, "llama_memory_seq_pos_min", lambda *_: 15)
    with pytest.raises(DecodeFailed, match="but its window starts at 15"):
        harness.run()
    harness.close()


@pytest.mark.parametrize(("length", "is_complete"), [(100, True), (99, False), (101, True)])
def test_the_window_of_the_next_token(length: int, is_complete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "llama_memory_seq_pos_min", lambda *_: 69)
    if is_complete:
        check_window(None, 0, length, WINDOW)
    else:
        with pytest.raises(DecodeFailed):
            check_window(None, 0, length, WINDOW)


# ── the lengths of drafts in a step ──────────────────────────────────────────────────────────────────────────────────


def _micro_batches(spans: list[Span], n_ubatch: int) -> Iterator[dict[int, int]]:
    """How many tokens of each sequence libllama computes at once: `split_equal` of llama-batch.cpp, for streams."""
    left = {span.sequence: len(span.tokens) + len(span.draft) for span in spans}
    while left:
        group: list[int] = []
        for sequence in left:
            if (not group or sequence == group[-1] + 1) and len(group) <= n_ubatch:
                group.append(sequence)
        count = 0
        while count < min(left[sequence] for sequence in group):
            count += 1
            if (count + 1) * len(group) > n_ubatch:
                break
        yield dict.fromkeys(group, count)
        left = {sequence: size for sequence in left if (size := left[sequence] - count * (sequence in group))}


_steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1, 1, 1, 1, 2, 5, 40]), st.integers(0, 9)), min_size=1, max_size=6
)


@examples(300)
@given(_steps, st.sampled_from([8, 16, 64]), st.booleans())
def test_drafts_are_computed_with_or_right_after_the_token_before_them(
    step: list[tuple[int, int, int]], n_ubatch: int, unified: bool
) -> None:
    spans: list[Span] = []
    for gap, size, drafted in step:
        sequence = spans[-1].sequence + 1 + gap if spans else gap
        spans.append(Span(sequence, 0, [1] * size, True, draft=[2] * drafted, draft_source="ngram"))
    before = [len(span.draft) for span in spans]
    shorten_drafts(spans, n_ubatch=n_ubatch, unified=unified)
    assert all(len(span.draft) <= size for span, size in zip(spans, before, strict=True))
    assert all((span.draft_source is None) == (not span.draft) for span in spans)
    if unified:
        total = sum(len(span.tokens) + len(span.draft) for span in spans)
        assert total <= n_ubatch or not any(span.draft for span in spans)
        return
    done = dict.fromkeys((span.sequence for span in spans), 0)
    for counts in _micro_batches(spans, n_ubatch):
        for span in spans:
            count = counts.get(span.sequence, 0)
            if count and span.draft:
                assert (done[span.sequence], count) in (
                    (0, 1),
                    (1, len(span.draft)),
                    (0, 1 + len(span.draft)),
                )
            done[span.sequence] += count


def test_the_length_with_most_drafted_tokens_is_chosen() -> None:
    def lengths(*drafts: int, prompt: int = 1) -> list[int]:
        spans = [Span(n, 0, [1], True, draft=[2] * size) for n, size in enumerate(drafts)]
        spans.append(Span(len(drafts), 0, [1] * prompt))
        shorten_drafts(spans, n_ubatch=512, unified=False)
        return [len(span.draft) for span in spans[:-1]]

    assert lengths(8) == [8]
    assert lengths(8, 7, 1) == [7, 7, 0]
    assert lengths(9, 1, 1) == [9, 0, 0]
    assert lengths(0, 0) == [0, 0]
    assert lengths(8, 6, prompt=5) == [4, 4]
    assert lengths(8, 6, prompt=300) == [6, 6]
