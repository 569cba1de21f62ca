"""The two tiers of the suite.

`make test` leaves out what is marked `full` and tries a tenth of the random examples. `make test-all` runs everything.
"""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

_TESTS = Path(__file__).parent

full = pytest.mark.full

# The files that take longest, in either tier. Times: docs/lab.md.
LONGEST = (
    "cluster/test_ray.py",
    "promises/test_disk_cache.py",
    "gateway/test_fuzzing.py",
    "promises/test_structured.py",
    "promises/test_determinism.py",
    "promises/test_replicas.py",
    "promises/test_soak.py",
    "scheduling/test_disk_tier.py",
    "promises/test_hangs.py",
    "fleet/test_lifecycle.py",
    "promises/test_sharing.py",
    "engine/test_stateful.py",
    "gateway/test_live.py",
    "replicas/test_conformance.py",
    "promises/test_clients.py",
    "clients/test_clients.py",
    "promises/test_memory_limit.py",
    "lab/test_abuse.py",
    "page/test_history.py",
    "promises/test_shutdown.py",
    "promises/test_fairness.py",
    "promises/test_fleet.py",
    "promises/test_isolation.py",
    "promises/test_tools.py",
    "gateway/test_slots.py",
    "gateway/test_live_access.py",
    "gateway/test_streams.py",
    "cli/test_logs.py",
    "test_documents.py",
    "worker/test_prompts.py",
    "worker/test_template_replies.py",
)
_ORDER = {_TESTS / name: position for position, name in enumerate(LONGEST)}

# Time is no property of the code here: the machine may be busy. In CI the examples of a test stay the same until the
# test changes, so that a change is refused only for what it did; on other machines each run tries new ones.
_COMMON = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize="CI" in os.environ
)
_EXAMPLES = {"fast": 10, "full": 100}


def register_profiles() -> None:
    for name, count in _EXAMPLES.items():
        hypothesis.settings.register_profile(name, _COMMON, max_examples=count)
    hypothesis.settings.load_profile("fast")


def start_order(path: Path) -> int:
    """The longest files start first: one that starts last leaves a core idle."""
    return _ORDER.get(path, len(LONGEST))


def is_full_tier() -> bool:
    """`make test-all` runs, and not `make test`."""
    return hypothesis.settings().max_examples >= _EXAMPLES["full"]


def examples(count: int) -> hypothesis.settings:
    """This many random examples in `make test-all`, and a tenth of them in `make test`."""
    share = hypothesis.settings().max_examples / _EXAMPLES["full"]
    return hypothesis.settings(max_examples=max(1, round(count * share)))
