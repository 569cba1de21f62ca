"""Tokens chosen from selected rows are those of the whole rows."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Logits
from paddock.engine.pause import Pause
from paddock.engine.sampler import Sampler
from paddock.engine.selected_rows import (
    KEPT,
    RATIO,
    SelectedRows,
    group_size,
    is_selection_of,
    likely_rows,
    locate_groups,
)
from paddock.types import SamplingParams
from tests.engine.sampling import changed, select_groups, shares
from tests.tiers import examples

_SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.3, 0.8, 2.0]),
    "top_k": st.sampled_from([0, 1, 2, 40, 60, 61]),
    "top_p": st.just(1.0) | shares,
    "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    "repeat_penalty": st.sampled_from([0.9, 1.0, 1.3]),
    "presence_penalty": st.sampled_from([-1.0, 0.0, 1.5]),
    "frequency_penalty": st.sampled_from([0.0, 0.5]),
    "dry_multiplier": st.sampled_from([0.0, 0.8]),
    "dry_allowed_length": st.integers(0, 2),
    "ignore_eos": st.booleans(),
    "seed": st.integers(0, 2**32),
}


@st.composite
def _samplers(draw: st.DrawFn, rows: Logits) -> list[Sampler]:
    """Biases and histories are about the most likely tokens, where they matter."""
    samplers = []
    for row in rows:
        names = draw(st.sets(st.sampled_from(sorted(_SETTINGS)), max_size=5))
        settings = {name: draw(_SETTINGS[name]) for name in sorted(names)}
        likely = st.sampled_from(np.argsort(-row)[:80].tolist()) | st.integers(0, len(row) - 1)
        biases = st.lists(st.tuples(likely, st.sampled_from([-math.inf, -5.0, -0.1, 0.0, 2.0])), max_size=4)
        params = changed(SamplingParams(seed=3), logit_bias=tuple(draw(biases)), **settings)
        history = draw(st.lists(likely, max_size=40))
        samplers.append(Sampler(params, history, end_tokens=frozenset({int(row.argmax())})))
    return samplers


def _part(selected: SelectedRows, which: list[int]) -> SelectedRows:
    groups, begins, tail, bound, n_vocab = selected
    return SelectedRows(groups[which], begins[which], tail[which], bound[which], n_vocab)


@st.composite
def _rows(draw: st.DrawFn) -> Logits:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_vocab = draw(st.sampled_from([1040, 1055, 3003, 20000]))
    rows = rng.normal(0, 3, (draw(st.integers(1, 4)), n_vocab)).astype(np.float32)
    coarse = draw(st.sampled_from([0, 0, 10, 1]))  # with ties
    return ((rows * coarse).round() / coarse).astype(np.float32) if coarse else rows


@examples(300)
@given(st.data())
def test_tokens_are_those_of_whole_rows(data: st.DataObject) -> None:
    rows = data.draw(_rows())
    samplers = data.draw(_samplers(rows))
    selected = select_groups(rows, np.random.default_rng(data.draw(st.integers(0, 9))))
    assert selected is not None
    for index, row in enumerate(rows):
        assert is_selection_of(_part(selected, [index]), row)
    usable = [index for index, sampler in enumerate(samplers) if sampler.is_selectable]
    samplers = [samplers[index] for index in usable]
    if not samplers:
        return
    others = deepcopy(samplers)
    found = BatchSampler(samplers).choose_selected(_part(selected, usable))
    if found is None:
        assert [sampler.drawn for sampler in samplers] == [0] * len(samplers)
        found = BatchSampler(samplers).choose(rows[usable])
    expected = BatchSampler(others).choose(rows[usable])
    assert [one.token for one in found] == [other.token for other in expected]
    assert [sampler.drawn for sampler in samplers] == [other.drawn for other in others]
    assert [len(sampler.history) for sampler in samplers] == [len(other.history) for other in others]


@examples(300)
@given(st.data(), st.integers(0, 2**32), st.sampled_from([49217, 60000]), st.sampled_from([0, 0, 10]))
def test_penalties_for_long_texts_give_the_same_tokens(
    data: st.DataObject, seed: int, n_vocab: int, coarse: int
) -> None:
    """Also for the next token, whose penalties depend on this one."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 3, (data.draw(st.integers(1, 3)), n_vocab)).astype(np.float32)
    if coarse:  # with ties
        rows = ((rows * coarse).round() / coarse).astype(np.float32)
    if data.draw(st.booleans()):
        rows[data.draw(st.integers(0, len(rows) - 1)), rng.integers(n_vocab)] = data.draw(
            st.sampled_from([np.nan, np.inf, -np.inf])
        )
    samplers = [sampler for sampler in data.draw(_samplers(rows)) if sampler.is_selectable]
    rows = rows[: len(samplers)]
    others = deepcopy(samplers)
    with mock.patch("paddock.engine.batch_sampler._MANY_COUNTED", 1):
        short, whole = BatchSampler(samplers), BatchSampler(others)
        whole._counting = []
        for step in range(3):
            given_rows = rng.permuted(rows, axis=0) if step else rows
            found, expected = short.choose(given_rows.copy()), whole.choose(given_rows.copy())
            assert [(one.token, one.error is None) for one in found] == [
                (other.token, other.error is None) for other in expected
            ]
    assert [sampler.drawn for sampler in samplers] == [other.drawn for other in others]
    assert [len(sampler.history) for sampler in samplers] == [len(other.history) for other in others]


@examples(100)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(49216, 60000))
def test_no_other_token_is_more_likely_than_the_bound(seed: int, count: int, n_vocab: int) -> None:
    rows = np.random.default_rng(seed).normal(0, 3, (count, n_vocab)).astype(np.float32)
    likely = likely_rows(rows)
    assert likely is not None
    for row, logits, ids, bound in zip(rows, *likely.rows, likely.bound, strict=True):
        assert (np.diff(ids) >= 0).all()
        is_filled = logits > -np.inf
        assert np.array_equal(row[ids[is_filled]], logits[is_filled])
        others = np.delete(row, ids[is_filled])
        assert others.max() <= bound
        assert np.sort(row)[-60] > bound, "usual rows are decided"


def test_long_texts_are_penalized_without_touching_the_row() -> None:
    rows = np.random.default_rng(1).normal(0, 3, (1, 60_000)).astype(np.float32)
    text = np.random.default_rng(2).integers(0, 60_000, 9000).tolist()
    before = rows.copy()
    BatchSampler([Sampler(SamplingParams(presence_penalty=1.0, repeat_last_n=-1), text)]).choose(rows)
    assert np.array_equal(rows, before)
    BatchSampler([Sampler(SamplingParams(presence_penalty=1.0, repeat_last_n=64), text)]).choose(rows)
    assert not np.array_equal(rows, before), "a short window is faster on the whole row"


@examples(300)
@given(st.data(), _rows(), st.integers(1, 60))
def test_the_most_likely_of_selected_rows(data: st.DataObject, rows: Logits, k: int) -> None:
    """With biases, among the selected tokens. Ties by id."""
    selected = select_groups(rows, np.random.default_rng(data.draw(st.integers(0, 9))))
    assert selected is not None
    ordered = selected.ordered()
    pairs = sorted(
        data.draw(st.sets(st.tuples(st.integers(0, len(rows) - 1), st.integers(0, rows.shape[1] - 1)), max_size=20))
        | {(0, rows.shape[1] - 1), (len(rows) - 1, int(rows[-1].argmax()))}
    )
    biased_rows, ids = np.array(pairs).T
    bias = np.array([data.draw(st.sampled_from([-np.inf, -3.0, -0.5])) for _ in pairs], np.float32)
    found, logits = selected.biased(biased_rows, ids, bias).top_k(k)
    for row in range(len(rows)):
        changes = {int(id): value for owner, id, value in zip(biased_rows, ids, bias, strict=True) if owner == row}
        values = {int(id): float(rows[row, id] + changes.get(int(id), np.float32(0))) for id in ordered.ids[row]}
        expected = sorted(values, key=lambda id: (-values[id], id))[:k]
        assert found[row].tolist() == expected
        assert logits[row].tolist() == [values[id] for id in expected]
    again = selected.ordered()
    assert np.array_equal(again.logits, ordered.logits) and np.array_equal(again.ids, ordered.ids)


@examples(100)
@given(st.integers(0, 2**32), st.integers(1040, 40000))
def test_usual_rows_are_decided(seed: int, n_vocab: int) -> None:
    """Logits of a model are almost never equal, so that a step is not repeated."""
    rng = np.random.default_rng(seed)
    rows = rng.permuted(np.linspace(-10, 10, n_vocab, dtype=np.float32)[None].repeat(3, axis=0), axis=1)
    selected = select_groups(rows, rng)
    assert selected is not None
    params = [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(top_k=60, seed=2)]
    assert BatchSampler([Sampler(one) for one in params]).choose_selected(selected) is not None


def test_what_other_tokens_could_change_is_not_selectable() -> None:
    def is_selectable(**settings: Any) -> bool:
        return Sampler(SamplingParams(**settings), [1]).is_selectable

    assert is_selectable() and is_selectable(temperature=0.0) and is_selectable(logit_bias=((1, -2.0),))
    assert is_selectable(presence_penalty=1.0, repeat_penalty=1.1, dry_multiplier=0.5)
    assert is_selectable(top_k=0, top_p=1.0, min_p=0.1)
    others: list[dict[str, Any]] = [
        {"logit_bias": ((1, 0.5),)}, {"presence_penalty": -0.1}, {"repeat_penalty": 0.9}, {"top_k": 100},
        {"top_k": 0}, {"n_probs": 0}, {"mirostat": 2}, {"typical_p": 0.5}, {"xtc_probability": 1.0},
        {"dynatemp_range": 0.5}, {"top_n_sigma": 1.0},
    ]  # fmt: skip
    assert [settings for settings in others if is_selectable(**settings)] == []


def test_impossible_numbers_of_groups_are_noticed() -> None:
    rows = np.random.default_rng(1).normal(0, 1, (2, 3000)).astype(np.float32)
    size = group_size(3000)
    outer = np.arange(KEPT, dtype=np.int32)[None].repeat(2, axis=0)
    inner = outer.copy()
    chosen = rows[:, : KEPT * (size // RATIO)].reshape(2, KEPT, -1)
    tail = rows[:, 3000 - 3000 % size :]

    def sort() -> SelectedRows | None:
        return locate_groups(outer, inner, chosen, tail, size=size, n_vocab=3000)

    assert sort() is not None
    for numbers, wrong in ((outer, -1), (outer, 3000), (inner, -1), (inner, RATIO * KEPT), (inner, 1)):
        before, numbers[1, 0] = numbers[1, 0], wrong
        assert sort() is None
        numbers[1, 0] = before


def test_a_small_vocabulary_is_not_selected_from() -> None:
    assert [group_size(n) for n in (32, 1039, 1040, 16384, 32000, 128256, 262144)] == [0, 0, 16, 16, 32, 128, 256]


@examples(200)
@given(st.lists(st.booleans(), max_size=400))
def test_repeated_steps_become_rare(fails: list[bool]) -> None:
    pause = Pause()
    assert pause.has_ended()
    waits = []
    for has_failed in fails:
        if not has_failed:
            pause.succeed()
            continue
        pause.fail()
        wait = 1
        while not pause.has_ended():
            wait += 1
        waits.append(wait)
    assert all(wait >= 64 for wait in waits)
    if all(fails):
        assert waits == [min(64 << place, 1 << 14) for place in range(len(waits))]
