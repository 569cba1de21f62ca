from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.auth.failed_keys import FailedKeys

addresses = st.sampled_from(
    ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:10.0.0.1", ""]
)


def test_a_few_mistakes_are_free_and_then_one_waits() -> None:
    failed = FailedKeys(allowed=3, per_second=0.5)
    for _ in range(3):
        assert failed.wait("10.0.0.1", 0) == 0
        failed.count("10.0.0.1", 0)
    assert failed.wait("10.0.0.1", 0) == 2
    assert failed.wait("10.0.0.1", 1) == 1
    assert failed.wait("10.0.0.1", 2) == 0
    assert failed.wait("10.0.0.2", 0) == 0, "others do not wait"


def test_addresses_of_one_ipv6_network_are_one() -> None:
    failed = FailedKeys(allowed=1)
    failed.count("2001:db8::1", 0)
    assert failed.wait("2001:db8::ffff", 0) > 0
    assert failed.wait("2001:db8:0:1::1", 0) == 0
    failed.count("::ffff:10.0.0.1", 0)
    assert failed.wait("10.0.0.1", 0) > 0


@given(st.lists(st.tuples(addresses, st.floats(0, 100)), max_size=60), st.integers(1, 4))
def test_the_table_is_bounded_and_everybody_is_forgiven_in_time(events: list[tuple[str, float]], most: int) -> None:
    failed = FailedKeys(allowed=2, per_second=1, most=most)
    for address, now in sorted(events, key=lambda event: event[1]):
        if failed.wait(address, now) == 0:
            failed.count(address, now)
        failed.trust(address)
        assert len(failed) <= most
        assert failed.wait(address, now) <= 1, "who waits as told may try again"
        assert failed.is_trusted(address)
