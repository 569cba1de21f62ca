"""What a router of Ray's remembers, without Ray."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paddock.cluster.routing import UnderWay

told = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["first", "late", "refused"])))


@given(told)
def test_in_whatever_order_ray_tells_nothing_is_left_over(requests: list[tuple[str, str]]) -> None:
    """Of each request the end may be told before the beginning; of one that a replica would not have, only the end."""
    under_way = UnderWay()
    running: Counter[str] = Counter()
    for number, (replica, how) in enumerate(requests):
        request = str(number)
        if how == "first":
            under_way.began(replica, request)
            running[replica] += 1
        elif how == "late":
            under_way.ended(replica, request)
            under_way.began(replica, request)
        else:
            under_way.ended(replica, request)
    assert {name: under_way.at(name) for name in "ab"} == {name: running[name] for name in "ab"}
    for number, (replica, how) in enumerate(requests):
        if how == "first":
            under_way.ended(replica, str(number))
    assert under_way.at("a") == under_way.at("b") == 0
    under_way.began("a", "new")
    under_way.forget("a")
    assert under_way.at("a") == 0
