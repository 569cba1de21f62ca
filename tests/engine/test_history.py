from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.history import History, common_endings
from paddock.engine.sampler import Sampler
from paddock.engine.vocab import PieceIndex
from paddock.types import SamplingParams
from tests.engine.reference_sampler import repeats

_tokens = st.lists(st.integers(0, 3), max_size=40) | st.builds(
    lambda unit, times: unit * times, st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 20)
)
_windows = st.sampled_from([-1, 0, 1, 2, 7, 30, 100])


@given(_tokens, st.lists(st.integers(0, 3), max_size=12), _windows, st.integers(0, 3), st.sets(st.integers(0, 5)))
def test_repeats_agree_with_a_direct_search(
    prompt: list[int], answer: list[int], window: int, least: int, breakers: set[int]
) -> None:
    history = History(prompt, frozenset(breakers))
    for length, token in enumerate([-1, *answer]):
        if token >= 0:
            history.append((token + 1) % 4)
            history.replace_last(token)
        ids, lengths = history.repeats(window, least)
        text = [*prompt, *answer[:length]]
        expected = repeats(text if window < 0 else text[max(0, len(text) - window) :], least, breakers)
        found: dict[int, int] = {}
        for id, repeated in zip(ids.tolist(), lengths.tolist(), strict=True):
            if repeated >= least:
                found[id] = max(found.get(id, 0), repeated)
        assert found == {id: repeated for id, repeated in expected.items() if id not in breakers}
        other = history.copy()
        other.append(0)


@given(_tokens, st.lists(st.integers(0, 9), max_size=30), _windows, st.lists(st.integers(0, 12), max_size=8))
def test_counts_of_some_tokens_agree_with_the_text(
    prompt: list[int], answer: list[int], window: int, ids: list[int]
) -> None:
    history = History(prompt)
    text = list(prompt)
    for token in [-1, *answer]:
        if token >= 0:
            history.append(token)
            text.append(token)
        counted = Counter(text if window < 0 else text[max(0, len(text) - window) :])
        assert history.counts_of(np.array(ids, np.int64), window).tolist() == [counted[id] for id in ids]
        other = history.copy()
        other.append(11)
        other.counts_of(np.array([11]), window)


@given(_tokens, st.lists(st.integers(0, 3), min_size=10, max_size=40), _windows)
def test_repeats_of_a_long_answer_agree_with_a_new_search(prompt: list[int], answer: list[int], window: int) -> None:
    """The index of the tokens is built again when the answer has grown."""

    def longer(history: History) -> list[tuple[int, int]]:
        ids, lengths = history.repeats(window, 2)
        return sorted((id, length) for id, length in zip(ids.tolist(), lengths.tolist(), strict=True) if length >= 2)

    with mock.patch("paddock.engine.history._FEW", 5):
        history = History(prompt)
        for length, token in enumerate(answer):
            history.append(token)
            assert longer(history) == longer(History([*prompt, *answer[: length + 1]]))


@given(_tokens)
def test_common_endings_are_exact(tokens: list[int]) -> None:
    def common(end: int) -> int:
        text = tokens[: end + 1]
        return next((n for n in range(len(text)) if text[-1 - n] != tokens[-1 - n]), len(text))

    assert common_endings(np.array(tokens, np.int64)).tolist() == [common(end) for end in range(len(tokens))]


@given(st.integers(0, 60), st.sampled_from([-1, 0, 5, 16_500]), st.integers(0, 2**32))
def test_counts_of_a_long_window_are_exact(more: int, window: int, seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, 9, 16_480 + more).tolist()
    history = History(tokens[:16_480])
    for end in range(16_480, len(tokens) + 1, 7):
        for token in tokens[len(history) : end]:
            history.append(token)
        ids, counts = history.counts(window)
        expected = Counter(tokens[:end] if window < 0 else tokens[max(0, end - window) : end])
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected


@given(st.lists(st.text("ab\n", max_size=4), max_size=30), st.lists(st.text("ab\n", max_size=3), max_size=4))
def test_the_index_finds_the_tokens_that_contain_a_text(pieces: list[str], texts: list[str]) -> None:
    found = PieceIndex(piece.encode() for piece in pieces).tokens_with(texts)
    wanted = [text for text in texts if text]
    assert found.tolist() == [n for n, piece in enumerate(pieces) if any(text in piece for text in wanted)]


def test_a_step_takes_one_pass_over_a_repetitive_text() -> None:
    """With a base of 1 the penalty does not grow, so it does not limit the length of the repetitions."""
    size = 20_000
    sampler = Sampler(SamplingParams(dry_multiplier=0.8, dry_base=1.0, seed=1), [7] * size)
    row = np.zeros(16, np.float32)
    tokens = [sampler.choose(row).token for _ in range(50)]
    assert len(tokens) == 50 and None not in tokens


@given(st.lists(st.integers(0, 7), max_size=20), st.integers(0, 2**63))
def test_a_sibling_samples_like_a_new_sampler(prompt: list[int], seed: int) -> None:
    params = SamplingParams(dry_multiplier=0.8, repeat_penalty=1.3, top_k=0, seed=seed)
    first, alone = (
        Sampler(SamplingParams(dry_multiplier=0.8, repeat_penalty=1.3, top_k=0, seed=1), prompt),
        Sampler(params, prompt),
    )
    sibling = first.sibling(params)
    rows = np.random.default_rng(2).normal(0, 1, (6, 8)).astype(np.float32)
    for row in rows:
        first.choose(row)
        assert sibling.choose(row) == alone.choose(row)
