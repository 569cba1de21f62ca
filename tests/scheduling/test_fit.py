"""The fit of measured times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.fit import Fit

_SWEEPS = 40

_Observations = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0.0, 0.01, 1.0, 3.0, 8.0]), min_size=2, max_size=2), st.floats(0, 10, width=32)
    ),
    min_size=1,
    max_size=40,
)


@given(features=st.integers(1, 2), observations=_Observations)
def test_the_costs_are_those_of_coordinate_descent(
    features: int, observations: list[tuple[list[float], float]]
) -> None:
    """As it is in textbooks: sweeps over all costs, from those of the last fit. It may end early, but not elsewhere."""
    fit = Fit(features)
    for seen, target in observations:
        costs = list(fit.costs)
        fit.observe(seen[:features], target)
        for _ in range(_SWEEPS):
            for i, row in enumerate(fit._products):
                if weight := row[i] + fit._ridge[i]:
                    rest = sum(row[j] * costs[j] for j in range(features + 1) if j != i)
                    costs[i] = max((fit._targets[i] - rest) / weight, 0.0)
        assert fit.costs == costs and min(costs) >= 0


def test_a_constant_time_is_learned_at_once() -> None:
    fit = Fit(1)
    for _ in range(3):
        fit.observe([1.0], 0.02)
    assert fit.predict([1.0]) == 0.02
