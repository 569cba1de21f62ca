from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.speculation.acceptance import Acceptance, ModelAcceptance
from paddock.types import DraftSource

Guesses = st.lists(st.tuples(st.sampled_from(["ngram", "tree"]), st.integers(0, 40), st.booleans()))


@given(guesses=Guesses, start=st.integers(0, 40), count=st.integers(1, 80))
def test_each_probability_is_the_one_after_so_many_tokens(
    guesses: list[tuple[DraftSource, int, bool]], start: int, count: int
) -> None:
    acceptance = Acceptance(ModelAcceptance())
    for source, length, is_right in guesses:
        acceptance.observe(source, length, is_right=is_right)
    found = list(islice(acceptance.probabilities("ngram", start), count))
    assert found == [next(acceptance.probabilities("ngram", start + place)) for place in range(count)]
    assert all(0 < probability < 1 for probability in found)
