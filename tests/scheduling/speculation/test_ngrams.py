"""`NgramIndex` against a search through the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.speculation.ngrams import LONGEST_MATCH, NgramIndex, PromptNgrams

Tokens = st.lists(st.integers(0, 3) | st.sampled_from([65_536, 151_000, 262_143]), max_size=60)


def matches(tokens: list[int]) -> dict[int, int]:
    """Every place after an occurrence of the last tokens, and how many tokens agree there."""
    found = {}
    for place in range(2, len(tokens)):
        length = 0
        while length < min(place, LONGEST_MATCH) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= 2:
            found[place] = length
    return found


@given(prompt=Tokens, answer=Tokens, parts=st.lists(st.integers(1, 5), max_size=60))
def test_a_place_has_as_many_equal_tokens_as_it_says(prompt: list[int], answer: list[int], parts: list[int]) -> None:
    tokens = list(prompt)
    index = NgramIndex(tokens, PromptNgrams(prompt))
    rest, at = list(answer), iter(parts)
    while rest:
        count = next(at, 1)
        tokens += rest[:count]
        del rest[:count]
        index.extend()
        expected = matches(tokens)
        found = index.find()
        if found is None:
            assert not expected
        else:
            place, length = found
            assert expected[place] == length


@given(prompt=Tokens, answer=Tokens)
def test_the_longest_match_wins_among_few_and_the_latest_of_equal_ones(prompt: list[int], answer: list[int]) -> None:
    tokens = prompt + answer
    expected = matches(tokens)
    if not 0 < len(expected) <= 8:
        return
    index = NgramIndex(tokens, PromptNgrams(prompt))
    longest = max(expected.values())
    assert index.find() == (max(place for place, length in expected.items() if length == longest), longest)


def test_a_long_prompt_is_indexed_at_once_and_shared() -> None:
    prompt = [(7 * place * place) % 50_000 for place in range(100_000)]
    shared = PromptNgrams(prompt)
    for at in (500, 99_000):
        tokens = prompt + prompt[at : at + 4]
        place, length = NgramIndex(tokens, shared).find() or (0, 0)
        assert tokens[place - length : place] == tokens[-length:]
        assert length >= 4
