"""Hang detection, without a worker and without a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.process.watchdog import Vigil

timeouts = st.floats(0.1, 1000)


@given(timeouts, st.lists(st.booleans(), max_size=200))
def test_silence_timeout(timeout: float, signs: list[bool]) -> None:
    vigil = Vigil(silence_timeout=timeout)
    silent = 0
    for sign in signs:
        if sign:
            vigil.heard()
            silent = 0
        silent += 1
        elapsed = silent * vigil.interval
        if vigil.look():
            assert elapsed > timeout * 0.99
            return
        assert elapsed < timeout * 1.01


@given(timeouts)
def test_no_message_at_all(timeout: float) -> None:
    vigil = Vigil(silence_timeout=timeout)
    looks = next(number for number in range(1, 10_000) if vigil.look())
    assert looks >= 4, "one late look or two are nobody's death"


@given(timeouts, timeouts)
def test_hang_timeout(timeout: float, took: float) -> None:
    vigil = Vigil(hang_timeout=timeout)
    vigil.heard()
    vigil.told(took)
    assert bool(vigil.look()) == (took >= timeout)


@given(st.booleans(), st.booleans(), st.sampled_from([0.0, 0.1]))
def test_idle(idle: bool, work_since: bool, in_step: float) -> None:
    vigil = Vigil()
    vigil.asked(idle=idle)
    if work_since:
        vigil.given_work()
    vigil.told(in_step)
    assert vigil.at_rest == (idle and not work_since and not in_step)
    vigil.asked(idle=True)
    assert not vigil.at_rest, "not before it has answered"


def test_start_resets_the_counters() -> None:
    vigil = Vigil(silence_timeout=4, hang_timeout=5)
    assert [vigil.look() for _ in range(3)] == ["", "", ""]
    vigil.told(5)
    vigil.begin()
    assert [vigil.look() for _ in range(3)] == ["", "", ""]
    assert "silence_timeout" in vigil.look()
