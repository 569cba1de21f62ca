"""Rate limits as pure functions, without a clock or a server."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest, RateLimitExceeded
from paddock.gateway.auth.limits import HEADERS, Bucket, Limits, Rates, duration

rates = st.integers(1, 10_000)
gaps = st.floats(0, 200, allow_nan=False)
starts = st.floats(0, 1e7, allow_nan=False)


def _admitted(limits: Limits, now: float) -> bool:
    try:
        limits.admit(now)
    except RateLimitExceeded:
        return False
    return True


def _refusal(limits: Limits, now: float) -> RateLimitExceeded:
    with pytest.raises(RateLimitExceeded) as caught:
        limits.admit(now)
    return caught.value


@given(rates, starts, st.lists(gaps, max_size=200))
def test_requests_are_limited_to_the_bucket_and_its_refill(rate: int, now: float, waits: list[float]) -> None:
    limits = Limits(Rates(requests_per_minute=rate), now)
    admitted: list[float] = []
    for wait in waits:
        now += wait
        if _admitted(limits, now):
            admitted.append(now)
    for first, begun in enumerate(admitted):
        for last in range(first, len(admitted)):
            allowed = rate + rate * (admitted[last] - begun) / 60
            assert last - first + 1 <= allowed + 1e-3


@given(rates, starts)
def test_a_full_bucket_admits_one_minutes_requests(rate: int, now: float) -> None:
    limits = Limits(Rates(requests_per_minute=rate), now)
    assert all(_admitted(limits, now) for _ in range(rate))
    refusal = _refusal(limits, now)
    assert refusal.retry_after is not None
    assert 0 < refusal.retry_after <= 60 / rate + 1e-6
    assert sum(_admitted(limits, now + 61) for _ in range(rate + 1)) == rate


@given(rates, starts, st.lists(st.tuples(gaps, st.integers(0, 50_000)), max_size=50))
def test_a_request_is_admitted_after_retry_after(rate: int, now: float, used: list[tuple[float, int]]) -> None:
    limits = Limits(Rates(tokens_per_minute=rate, requests_per_minute=rate), now)
    for wait, tokens in used:
        now += wait
        if not _admitted(limits, now):
            retry_after = _refusal(limits, now).retry_after
            assert retry_after is not None and retry_after > 0
            limits.admit(now + retry_after)
            now += retry_after
        limits.settle(0, tokens, now)


@given(rates, starts, st.integers(1, 10**9))
def test_a_debt_of_tokens_delays_the_next_request(rate: int, now: float, tokens: int) -> None:
    limits = Limits(Rates(tokens_per_minute=rate), now)
    limits.admit(now)
    limits.settle(0, tokens, now)
    assert _admitted(limits, now) is (tokens < rate)
    if tokens >= rate:
        wait = (tokens - rate + 1) * 60 / rate
        assert _refusal(limits, now).retry_after == pytest.approx(wait)
        assert not _admitted(limits, now + wait * 0.999 - 0.001)


@given(
    rates, starts, st.lists(st.tuples(st.integers(1, 8), st.integers(1, 20_000), st.integers(0, 20_000)), max_size=40)
)
def test_reserved_tokens_are_limited_to_one_minutes_allowance(
    rate: int, now: float, asked: list[tuple[int, int, int]]
) -> None:
    """At one moment at most one minute's allowance is reserved, and all of it is settled later."""
    limits = Limits(Rates(tokens_per_minute=rate), now)
    under_way: list[tuple[int, int, int]] = []
    for answers, tokens, used in asked:
        if not _admitted(limits, now):
            continue
        try:
            taken = limits.reserve(answers, tokens, now)
        except InvalidRequest:
            assert answers > 1 and tokens > rate
            limits.release()
        except RateLimitExceeded as refusal:
            assert refusal.retry_after is not None
            assert refusal.retry_after > 0
            limits.release()
        else:
            assert taken == min(tokens, rate)
            under_way.append((answers, taken, used))
        assert sum(taken for _, taken, _ in under_way) <= rate
    assert limits.running == sum(answers for answers, _, _ in under_way)
    for answers, taken, used in under_way:
        limits.settle(taken, used, now)
        limits.release(answers)
    assert limits.running == 0
    left = rate - sum(used for _, _, used in under_way)
    assert limits.headers(now)["x-ratelimit-remaining-tokens"] == str(max(0, left))


def test_each_answer_counts_as_a_concurrent_request() -> None:
    limits = Limits(Rates(concurrent_requests=4), 0)
    limits.admit(0)
    limits.reserve(3, 0, 0)
    limits.admit(0)
    with pytest.raises(RateLimitExceeded, match="this key has 3 running and may have 4"):
        limits.reserve(2, 0, 0)
    limits.release()
    limits.release(3)
    limits.admit(0)
    with pytest.raises(InvalidRequest, match="needs 5 answers; this key may have 4"):
        limits.reserve(5, 0, 0)


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=100))
def test_concurrent_requests_are_limited(most: int, coming: list[bool]) -> None:
    limits = Limits(Rates(concurrent_requests=most), 0)
    running = 0
    for comes in coming:
        if comes:
            assert _admitted(limits, 0) is (running < most)
            running = min(most, running + 1)
        elif running:
            limits.release()
            running -= 1
        assert limits.running == running


@given(st.sampled_from(["requests_per_minute", "tokens_per_minute", "concurrent_requests"]), starts)
def test_a_refused_request_uses_nothing(limit: str, now: float) -> None:
    limits = Limits(Rates(**{"requests_per_minute": 100, "tokens_per_minute": 100, limit: 1}), now)
    limits.admit(now)
    limits.settle(0, 1, now)
    before = limits.headers(now), limits.running
    _refusal(limits, now)
    assert (limits.headers(now), limits.running) == before


def test_without_limits_every_request_is_admitted_without_headers() -> None:
    limits = Limits(Rates(), 0)
    for _ in range(1000):
        limits.admit(0)
        limits.settle(0, 10**9, 0)
    assert limits.headers(0) == {}


def test_headers_have_the_format_of_openai() -> None:
    limits = Limits(Rates(requests_per_minute=60, tokens_per_minute=6000), 0)
    limits.admit(0)
    limits.settle(0, 6600, 0)
    assert limits.headers(0.5) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "500ms",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m5.5s",
    }
    assert set(limits.headers(1)) == set(HEADERS)


def test_changed_rates_apply_at_once_and_unchanged_buckets_keep_their_level() -> None:
    limits = Limits(Rates(requests_per_minute=2, tokens_per_minute=100), 0)
    limits.admit(0)
    limits.settle(0, 500, 0)
    limits.change(Rates(requests_per_minute=1, tokens_per_minute=100), 0)
    assert limits.headers(0)["x-ratelimit-remaining-requests"] == "1"
    assert "tokens" in _refusal(limits, 0).message, "a reload keeps the debt"
    limits.change(Rates(concurrent_requests=1), 0)
    assert "concurrent requests" in _refusal(limits, 0).message, "running requests are still counted"
    limits.release()
    limits.admit(0)


@given(rates, starts, gaps, st.integers(0, 10**6))
def test_a_clock_that_goes_back_refills_nothing(rate: int, now: float, gap: float, amount: int) -> None:
    bucket = Bucket(rate, now)
    bucket.take(amount, now)
    level = bucket.level(now)
    assert bucket.level(now - gap) == level
    bucket.take(0, now - gap)
    assert bucket.level(now) == level


_GO = re.compile(r"(?:(\d+)m)?(\d+(?:\.\d{1,3})?)s|(\d+)ms")


@given(st.floats(0, 1e6, allow_nan=False))
def test_durations_are_rounded_up(seconds: float) -> None:
    match = _GO.fullmatch(duration(seconds))
    assert match is not None, duration(seconds)
    minutes, whole, thousandths = (float(part or 0) for part in match.groups())
    written = 60 * minutes + whole + thousandths / 1000
    assert seconds - 1e-6 <= written <= seconds + 0.0011


@given(st.integers(1, 10**9) | st.none(), st.integers(1, 64))
def test_the_shares_of_gateways_do_not_exceed_the_limit(limit: int | None, gateways: int) -> None:
    share = Rates(limit, limit, limit).divided(gateways)
    for rate in (share.requests_per_minute, share.tokens_per_minute, share.concurrent_requests):
        if limit is None:
            assert rate is None
        else:
            assert rate is not None and rate >= 1
            assert rate * gateways <= max(limit, gateways)
