"""The in-flight requests of a Ray router, without Ray."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paddock.cluster.routing import InFlight

reports = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["first", "late", "refused"])))


@given(reports)
def test_events_in_any_order_leave_no_request(requests: list[tuple[str, str]]) -> None:
    """The end of a request may be reported before its start. A rejected request has only an end."""
    in_flight = InFlight()
    running: Counter[str] = Counter()
    for number, (replica, how) in enumerate(requests):
        request = str(number)
        if how == "first":
            in_flight.began(replica, request)
            running[replica] += 1
        elif how == "late":
            in_flight.ended(replica, request)
            in_flight.began(replica, request)
        else:
            in_flight.ended(replica, request)
    assert {name: in_flight.at(name) for name in "ab"} == {name: running[name] for name in "ab"}
    for number, (replica, how) in enumerate(requests):
        if how == "first":
            in_flight.ended(replica, str(number))
    assert in_flight.at("a") == in_flight.at("b") == 0
    in_flight.began("a", "new")
    in_flight.forget("a")
    assert in_flight.at("a") == 0
