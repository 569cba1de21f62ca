"""A fit of measured times by what they depend on."""

from __future__ import annotations

from collections.abc import Sequence

_FORGETTING = 0.8
_SWEEPS = 40
# The cost of a feature that was always tiny cannot be told from noise, so it is drawn to zero.
_RIDGE = 0.01
_LEAST_SEEN = 0.1


class Fit:
    """Non-negative least squares: `target = cost + sum(cost * feature)`. Old observations are forgotten.

    Features should be about 1 where they matter. There are few of them, so coordinate descent from the last fit is
    enough.
    """

    def __init__(self, features: int) -> None:
        self._range = range(features + 1)
        self._ridge = [0.0 for _ in self._range]
        self._largest = [0.0 for _ in self._range]
        self._products = [[0.0 for _ in self._range] for _ in self._range]
        self._targets = [0.0 for _ in self._range]
        self.costs = [0.0 for _ in self._range]
        """The first one is constant."""
        self.observed = 0

    def observe(self, features: Sequence[float], target: float) -> None:
        row = [1.0, *features]
        for i in self._range:
            self._targets[i] = _FORGETTING * self._targets[i] + row[i] * target
            self._ridge[i] = _FORGETTING * self._ridge[i] + (_RIDGE if i and row[i] else 0.0)
            self._largest[i] = max(self._largest[i], row[i])
            for j in self._range:
                self._products[i][j] = _FORGETTING * self._products[i][j] + row[i] * row[j]
        self.observed += 1
        self._descend()

    def predict(self, features: Sequence[float]) -> float:
        return self.costs[0] + sum(cost * feature for cost, feature in zip(self.costs[1:], features, strict=True))

    def has_seen(self, feature: int) -> bool:
        """Whether this feature was ever large enough to have an effect."""
        return self._largest[feature] >= _LEAST_SEEN

    def _descend(self) -> None:
        """Until nothing changes, or for so many sweeps. This is done after each step, so it has no inner functions."""
        costs, targets = self.costs, self._targets
        rows = [
            (i, row, row[i] + self._ridge[i], [j for j in self._range if j != i])
            for i, row in enumerate(self._products)
        ]
        rows = [row for row in rows if row[2]]
        for _ in range(_SWEEPS):
            is_changed = False
            for i, row, weight, others in rows:
                rest = 0.0
                for j in others:
                    rest += row[j] * costs[j]
                cost = (targets[i] - rest) / weight
                if cost < 0.0:
                    cost = 0.0
                if cost != costs[i]:
                    costs[i], is_changed = cost, True
            if not is_changed:
                return
