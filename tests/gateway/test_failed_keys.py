from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.auth.failed_keys import FailedKeys

addresses = st.sampled_from(
    ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:10.0.0.1", ""]
)


def test_an_address_waits_after_too_many_wrong_keys() -> None:
    failed = FailedKeys(per_minute=3)
    for _ in range(3):
        assert failed.wait("10.0.0.1", 0) == 0
        failed.count("10.0.0.1", 0)
    assert failed.wait("10.0.0.1", 0) == 20
    assert failed.wait("10.0.0.1", 10) == 10
    assert failed.wait("10.0.0.1", 20) == 0
    assert failed.wait("10.0.0.2", 0) == 0, "other addresses do not wait"


def test_the_default_allows_ten_wrong_keys_and_then_one_every_six_seconds() -> None:
    failed = FailedKeys()
    for _ in range(10):
        assert failed.wait("10.0.0.1", 0) == 0
        failed.count("10.0.0.1", 0)
    assert failed.wait("10.0.0.1", 0) == 6


def test_addresses_of_one_ipv6_network_count_together() -> None:
    failed = FailedKeys(per_minute=1)
    failed.count("2001:db8::1", 0)
    assert failed.wait("2001:db8::ffff", 0) > 0
    assert failed.wait("2001:db8:0:1::1", 0) == 0
    failed.count("::ffff:10.0.0.1", 0)
    assert failed.wait("10.0.0.1", 0) > 0


@given(st.lists(st.tuples(addresses, st.floats(0, 6000)), max_size=60), st.integers(1, 4))
def test_the_table_is_bounded_and_the_wait_ends(events: list[tuple[str, float]], most: int) -> None:
    failed = FailedKeys(per_minute=2, most=most)
    for address, now in sorted(events, key=lambda event: event[1]):
        if failed.wait(address, now) == 0:
            failed.count(address, now)
        failed.trust(address)
        assert len(failed) <= most
        assert failed.wait(address, now) <= 30.001, "after the announced wait one more key is answered"
        assert failed.is_trusted(address)
