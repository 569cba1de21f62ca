from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.replicas.condition import Condition


def test_status_codes() -> None:
    condition = Condition()
    for status, health in [(200, "ready"), (503, "unready"), (200, "ready")]:
        condition.checked(status)
        assert condition.health == health


def test_down_after_two_misses_or_a_refused_connection() -> None:
    condition = Condition(health="ready")
    healths = []
    for _ in range(2):
        condition.checked(0)
        healths.append(condition.health)
    assert healths == ["ready", "down"]
    other = Condition(health="ready")
    other.unreachable()
    assert other == Condition(health="down")


def test_recovery_resets_the_failures() -> None:
    condition = Condition(health="ready")
    for _ in range(5):
        condition.failures.failed("no", now=0)
    condition.unreachable()
    condition.checked(503)
    condition.checked(200)
    assert (condition.epoch, condition.health) == (1, "ready")
    assert condition.failures.pause(now=0) == 0


@given(st.lists(st.sampled_from([0, 200, 500, 503, "failed", "succeeded"]), max_size=40))
def test_ready_only_after_a_passed_check(happened: list[int | str]) -> None:
    condition, last, missed = Condition(), "unready", 0
    for what in happened:
        match what:
            case "failed":
                condition.failures.failed("no", now=0)
            case "succeeded":
                condition.failures.succeeded()
                assert condition.failures.pause(now=0) == 0
            case int():
                condition.checked(what)
                missed = 0 if what in (200, 503) else missed + 1
                last = "ready" if what == 200 else "unready" if what == 503 else "down" if missed >= 2 else last
        assert condition.health == last
