"""Hang detection, without a worker and without a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.process.watchdog import Watchdog

timeouts = st.floats(0.1, 1000)


@given(timeouts, st.lists(st.booleans(), max_size=200))
def test_silence_timeout(timeout: float, signs: list[bool]) -> None:
    watchdog = Watchdog(silence_timeout=timeout)
    silent = 0
    for sign in signs:
        if sign:
            watchdog.message_received()
            silent = 0
        silent += 1
        elapsed = silent * watchdog.interval
        if watchdog.check():
            assert elapsed > timeout * 0.99
            return
        assert elapsed < timeout * 1.01


@given(timeouts)
def test_no_message_at_all(timeout: float) -> None:
    watchdog = Watchdog(silence_timeout=timeout)
    looks = next(number for number in range(1, 10_000) if watchdog.check())
    assert looks >= 4, "one or two late checks are harmless"


@given(timeouts, timeouts)
def test_hang_timeout(timeout: float, took: float) -> None:
    watchdog = Watchdog(hang_timeout=timeout)
    watchdog.message_received()
    watchdog.step_reported(took)
    assert bool(watchdog.check()) == (took >= timeout)


@given(st.booleans(), st.booleans(), st.sampled_from([0.0, 0.1]))
def test_idle(idle: bool, work_since: bool, in_step: float) -> None:
    watchdog = Watchdog()
    watchdog.pinged(idle=idle)
    if work_since:
        watchdog.work_added()
    watchdog.step_reported(in_step)
    assert watchdog.is_idle == (idle and not work_since and not in_step)
    watchdog.pinged(idle=True)
    assert not watchdog.is_idle, "only after its reply"


def test_start_resets_the_counters() -> None:
    watchdog = Watchdog(silence_timeout=4, hang_timeout=5)
    assert [watchdog.check() for _ in range(3)] == ["", "", ""]
    watchdog.step_reported(5)
    watchdog.start()
    assert [watchdog.check() for _ in range(3)] == ["", "", ""]
    assert "silence_timeout" in watchdog.check()
