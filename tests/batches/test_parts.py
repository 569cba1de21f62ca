"""Lines in parts: each is run once, and every replica computes other prefixes."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st

from paddock.batches.parts import Part, Parts
from paddock.batches.records import Line
from paddock.replicas.routing import Load, Router, chain_of
from tests.tiers import examples

_FETCHED = 16
_COMPUTE = 8.0
"""How long the prefix of a group takes, in times of a line."""


def line(rank: int) -> Line:
    return Line(rank, rank, f"id-{rank}", 0, 1, 0)


def fetch(parts: Parts, left: Sequence[int]) -> None:
    """`left` are the ranks that are not answered, in order."""
    for part in parts:
        while not part.queue and not part.is_fetched:
            first, last = bisect_left(left, part.next), bisect_left(left, part.end)
            found = left[first : min(first + _FETCHED, last)]
            part.add([line(rank) for rank in found], is_all=len(found) < _FETCHED)


@examples(300)
@given(st.sets(st.integers(0, 299)), st.lists(st.integers(1, 9), min_size=1), st.data())
def test_every_line_is_started_once(unanswered: set[int], replicas: list[int], data: st.DataObject) -> None:
    """Some ranks are answered already, the number of replicas changes, and lines come back."""
    parts, left = Parts(300), sorted(unanswered)
    started: Counter[int] = Counter()
    running: list[tuple[Part, Line]] = []
    back: Counter[int] = Counter()
    for step in range(10_000):
        parts.share_out(replicas[step % len(replicas)])
        fetch(parts, left)
        part = parts.next()
        if part is None:
            break
        assert part.running == min(other.running for other in parts if other.queue)
        one = part.queue.popleft()
        started[one.rank] += 1
        part.running += 1
        running.append((part, one))
        if len(running) > 5 or data.draw(st.booleans()):
            ended, again = running.pop(data.draw(st.integers(0, len(running) - 1)))
            ended.running -= 1
            if back[again.rank] < 1 and data.draw(st.booleans()):
                back[again.rank] += 1
                ended.queue.appendleft(again)
    assert started == Counter(unanswered) + back


def test_a_part_without_lines_takes_half_of_the_largest() -> None:
    parts = Parts(400)
    parts.share_out(4)
    assert sorted((part.next, part.end) for part in parts) == [(0, 100), (100, 200), (200, 300), (300, 400)]


def test_one_replica_gets_all_lines_in_their_order() -> None:
    parts, order = Parts(100), []
    for _ in range(100):
        parts.share_out(1)
        fetch(parts, range(100))
        part = parts.next()
        assert part is not None
        order.append(part.queue.popleft().rank)
    assert order == list(range(100))


def test_each_prefix_is_computed_by_one_replica() -> None:
    """Twenty groups of a hundred lines on four replicas of eight slots, sent by the router that batches use. With one
    part for all, each prefix is computed four times, and the batch takes 1.5 times as long or more.
    """
    alone, divided = (_simulate(parts, replicas=4, groups=20, lines=100) for parts in (1, 4))
    assert alone[0] == 80
    assert divided[0] <= 24
    assert alone[1] > 1.5 * divided[1]


def test_one_prefix_is_computed_by_all_replicas() -> None:
    """They share the work of a batch whose lines have one prefix."""
    computed, seconds = _simulate(8, replicas=8, groups=1, lines=1000)
    assert computed == 8
    assert seconds < 1.3 * (1000 / 64) + _COMPUTE


def _simulate(parts: int, *, replicas: int, groups: int, lines: int, slots: int = 8) -> tuple[int, float]:
    """How many prefixes are computed, and how long the batch takes."""
    chance = random.Random(3)
    systems = [f"{group} " + "words of a system prompt " * 80 for group in range(groups)]
    chains = [chain_of([system, f"question {number}"]) for system in systems for number in range(lines)]
    divided, router = Parts(len(chains)), Router([f"r{number}" for number in range(replicas)])
    busy = Counter({f"r{number}": 0 for number in range(replicas)})
    waiting: dict[str, deque[tuple[Part, int]]] = {name: deque() for name in busy}
    known: dict[tuple[str, int], float] = {}
    ends: list[tuple[float, int, str, Part]] = []
    now = 0.0

    def begin(name: str, part: Part, rank: int) -> None:
        place = name, rank // lines
        there = known.setdefault(place, now + _COMPUTE)
        heappush(ends, (max(there, now) + chance.uniform(0.7, 1.3), rank, name, part))

    def start() -> None:
        while sum(busy.values()) < 2 * slots * replicas:
            divided.share_out(parts)
            fetch(divided, range(len(chains)))
            part = divided.next()
            if part is None:
                return
            rank = part.queue.popleft().rank
            loads = {name: Load(min(count, slots), max(count - slots, 0), slots) for name, count in busy.items()}
            choice = router.choose(chains[rank], loads, is_batch=True)
            assert choice is not None
            router.began(choice.name, chains[rank])
            part.running += 1
            busy[choice.name] += 1
            if busy[choice.name] <= slots:
                begin(choice.name, part, rank)
            else:
                waiting[choice.name].append((part, rank))

    start()
    while ends:
        now, _, name, part = heappop(ends)
        part.running -= 1
        busy[name] -= 1
        if waiting[name]:
            begin(name, *waiting[name].popleft())
        start()
    return len(known), now
