"""The two tiers of the suite.

`make test` leaves out what is marked `full` and tries a fifth of the random examples. `make test-all` runs everything.
"""

from __future__ import annotations

import hypothesis
import pytest

full = pytest.mark.full

# Time is no property of the code here: the machine may be busy.
_COMMON = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
_EXAMPLES = {"fast": 20, "full": 100}


def register_profiles() -> None:
    for name, count in _EXAMPLES.items():
        hypothesis.settings.register_profile(name, _COMMON, max_examples=count)
    hypothesis.settings.load_profile("fast")


def examples(count: int) -> hypothesis.settings:
    """This many random examples in `make test-all`, and a fifth of them in `make test`."""
    share = hypothesis.settings().max_examples / _EXAMPLES["full"]
    return hypothesis.settings(max_examples=max(1, round(count * share)))
