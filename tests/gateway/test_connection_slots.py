"""The limits on connections and requests hold for every order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ServerSettings
from paddock.errors import PaddockError, TooManyConnections
from paddock.gateway.http.connection_slots import (
    ConnectionLimits,
    ConnectionTable,
    RequestEntry,
    RequestTable,
    Use,
    network_of,
)


def _limits(most: int, **settings: int) -> ConnectionLimits:
    return ConnectionLimits.of(ServerSettings(max_connections=most, **settings))


_uses = st.sampled_from(["request", "watch", "health", "admin"])


@given(
    most=st.integers(1, 40),
    per_key=st.integers(1, 40),
    watchers=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 60), _uses, st.sampled_from("abcd")), max_size=200),
)
def test_running_requests_are_limited(
    most: int, per_key: int, watchers: int, steps: list[tuple[int, Use, str]]
) -> None:
    limits = _limits(most, max_connections_per_key=per_key, max_watchers_per_key=watchers)
    table = RequestTable(limits)
    taken: dict[int, tuple[RequestEntry, Use, str]] = {}
    for number, use, owner in steps:
        if number in taken:
            taken.pop(number)[0].release()
            continue
        entry = RequestEntry(table)
        try:
            entry.take(use, owner, has_key=True)
            taken[number] = (entry, use, owner)
        except PaddockError as error:
            assert error.retry_after
            assert use != "admin" or len(taken) >= most
        ordinary = [(one, name) for _, one, name in taken.values() if one in ("request", "watch")]
        assert table.used.total() == len(taken) <= most
        assert len(ordinary) <= most - limits.reserved
        for name in "abcd":
            assert sum(key == name for _, key in ordinary) <= per_key
            assert sum(one == ("watch", name) for one in ordinary) <= watchers
    for entry, _, _ in taken.values():
        entry.release()
        entry.release()
    assert table.used.total() == 0


@given(most=st.integers(2, 5000))
def test_a_few_requests_are_reserved(most: int) -> None:
    assert 1 <= _limits(most).reserved <= max(1, most // 16) <= most - 1


@given(
    most=st.integers(1, 12),
    per_address=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "request", "key", "response", "close"]), st.integers(0, 30)), max_size=200
    ),
)
def test_connections_are_limited(most: int, per_address: int, steps: list[tuple[str, int]]) -> None:
    """Connection n comes from address n % 3."""
    table: ConnectionTable[int] = ConnectionTable(most, per_address)
    idle: dict[int, bool] = {}
    authenticated: set[int] = set()
    for step, number in steps:
        if step == "open" and number not in idle:
            try:
                evicted = table.add(number, str(number % 3))
            except TooManyConnections:
                own = [other for other in idle if other % 3 == number % 3 and other not in authenticated]
                candidates = own if len(own) >= per_address else list(idle)
                assert not any(idle[other] for other in candidates)
                continue
            if evicted is not None:
                assert idle.pop(evicted), "only an idle connection is evicted"
            idle[number] = True
        elif number in idle and step == "request":
            table.mark_busy(number)
            idle[number] = False
        elif number in idle and step == "key" and not idle[number]:
            table.mark_authenticated(number)
            authenticated.add(number)
        elif number in idle and step == "response":
            table.mark_idle(number)
            idle[number] = True
            authenticated.discard(number)
        elif step == "close":
            table.leave(number)
            idle.pop(number, None)
            authenticated.discard(number)
        assert len(table) == len(idle) <= most


def test_an_address_with_many_connections_loses_its_own_first() -> None:
    table: ConnectionTable[str] = ConnectionTable(4, 4)
    for name in ("old", "many1", "many2", "many3"):
        assert table.add(name, name[:4]) is None
    assert table.add("new", "new") == "many1"
    assert table.add("many4", "many") == "many2"


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
def test_network_of_an_address(host: str, network: str) -> None:
    assert network_of(host) == network


@given(st.text())
def test_any_text_has_a_network(host: str) -> None:
    network_of(host)
