"""Who gets a connection and a place for a request: rules that hold whatever comes in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import PaddockError, TooManyConnections
from paddock.gateway.http.connection_slots import (
    ConnectionTable,
    RequestEntry,
    RequestTable,
    RequestTableLimits,
    Use,
    network_of,
)

_uses = st.sampled_from(["request", "watch", "health", "admin"])


@given(
    most=st.integers(1, 40),
    per_key=st.integers(1, 40),
    watchers=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 60), _uses, st.sampled_from("abcd")), max_size=200),
)
def test_places_are_bounded(most: int, per_key: int, watchers: int, steps: list[tuple[int, Use, str]]) -> None:
    limits = RequestTableLimits(most, per_key, watchers)
    places = RequestTable(limits)
    taken: dict[int, tuple[RequestEntry, Use, str]] = {}
    for number, use, owner in steps:
        if number in taken:
            taken.pop(number)[0].release()
            continue
        place = RequestEntry(places)
        try:
            place.take(use, owner, has_key=True)
            taken[number] = (place, use, owner)
        except PaddockError as error:
            assert error.retry_after
            assert use != "admin" or len(taken) >= most
        ordinary = [(one, name) for _, one, name in taken.values() if one in ("request", "watch")]
        assert places.used.total() == len(taken) <= most
        assert len(ordinary) <= most - limits.reserved
        for name in "abcd":
            assert sum(key == name for _, key in ordinary) <= per_key
            assert sum(one == ("watch", name) for one in ordinary) <= watchers
    for place, _, _ in taken.values():
        place.release()
        place.release()
    assert places.used.total() == 0


@given(most=st.integers(2, 5000))
def test_some_places_are_reserved_and_most_are_not(most: int) -> None:
    assert 1 <= RequestTableLimits(most, 1, 1).reserved <= max(1, most // 16) <= most - 1


@given(
    most=st.integers(1, 12),
    per_address=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.sampled_from(["arrive", "work", "key", "rest", "leave"]), st.integers(0, 30)), max_size=200
    ),
)
def test_a_crowd_is_bounded(most: int, per_address: int, steps: list[tuple[str, int]]) -> None:
    """Member n comes from address n % 3."""
    crowd: ConnectionTable[int] = ConnectionTable(most, per_address)
    quiet: dict[int, bool] = {}
    keyed: set[int] = set()
    for step, member in steps:
        if step == "arrive" and member not in quiet:
            try:
                left = crowd.add(member, str(member % 3))
            except TooManyConnections:
                own = [other for other in quiet if other % 3 == member % 3 and other not in keyed]
                candidates = own if len(own) >= per_address else list(quiet)
                assert not any(quiet[other] for other in candidates)
                continue
            if left is not None:
                assert quiet.pop(left), "only one that is quiet makes room"
            quiet[member] = True
        elif member in quiet and step == "work":
            crowd.mark_busy(member)
            quiet[member] = False
        elif member in quiet and step == "key" and not quiet[member]:
            crowd.mark_authenticated(member)
            keyed.add(member)
        elif member in quiet and step == "rest":
            crowd.mark_idle(member)
            quiet[member] = True
            keyed.discard(member)
        elif step == "leave":
            crowd.leave(member)
            quiet.pop(member, None)
            keyed.discard(member)
        assert len(crowd) == len(quiet) <= most


def test_who_opens_many_pushes_out_his_own() -> None:
    crowd: ConnectionTable[str] = ConnectionTable(4, 4)
    for name in ("old", "many1", "many2", "many3"):
        assert crowd.add(name, name[:4]) is None
    assert crowd.add("new", "new") == "many1"
    assert crowd.add("many4", "many") == "many2"


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("somewhere", "somewhere"),
    ],
)
def test_networks(host: str, network: str) -> None:
    assert network_of(host) == network


@given(st.text())
def test_any_text_has_a_network(host: str) -> None:
    network_of(host)
