"""Random numbers that are computed together are those that are computed alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.draws import Uniforms, uniform

_seeds = st.integers(-(2**64), 2**64) | st.integers(0, 2**32)


@given(st.lists(st.tuples(_seeds, st.integers(0, 2**31)), min_size=1, max_size=40), st.data())
def test_several_at_once(drawn: list[tuple[int, int]], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.integers(0, len(drawn) - 1), unique=True, min_size=1))
    found = Uniforms([seed for seed, _ in drawn]).draw(which, [drawn[index][1] for index in which])
    assert found.tolist() == [uniform(*drawn[index]) for index in which]
    assert all(0 <= number < 1 for number in found)
