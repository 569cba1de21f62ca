"""Whose turn it is, with one place and requests that are served whole: what fair queueing promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.fairness import BATCH_EVERY, TURN, FairQueue, may_enqueue

LARGEST = 50
Keys = st.sampled_from("abc")
Sizes = st.integers(1, LARGEST)


@dataclass(eq=False)
class Guest:
    key: str = ""
    weight: float = 1.0
    batch: bool = False
    arrival: int = 0
    size: int = 1
    new_tokens: int = 0
    is_preemptible: bool = True


class Desk:
    """Serves one after another."""

    def __init__(self) -> None:
        self.queue: FairQueue[Guest] = FairQueue()
        self.served: defaultdict[str, int] = defaultdict(int)
        self.arrivals = 0

    def arrive(self, key: str = "", size: int = 1, weight: float = 1.0, batch: bool = False) -> Guest:
        self.arrivals += 1
        guest = Guest(key, weight, batch, self.arrivals, size)
        self.queue.add(guest)
        return guest

    def serve(self) -> Guest | None:
        guest = self.queue.first()
        assert (guest is None) == (len(self.queue) == 0), "nobody waits while the desk is free"
        if guest is not None:
            self.queue.take(guest)
            self.queue.mark_running(guest)
            self.queue.charge(guest, guest.size)
            self.queue.mark_stopped(guest)
            self.served[guest.key] += guest.size
        return guest


@given(st.lists(st.one_of(st.none(), Sizes)))
def test_without_keys_the_queue_is_first_come_first_served(events: list[int | None]) -> None:
    desk = Desk()
    order = [desk.arrive(size=size) if size else desk.serve() for size in events]
    taken = [guest.arrival for guest, size in zip(order, events, strict=True) if guest is not None and size is None]
    assert taken == list(range(1, len(taken) + 1))


@given(st.lists(st.one_of(st.none(), st.tuples(Keys, Sizes, st.booleans()))))
def test_within_a_key_and_class_the_queue_is_first_come_first_served(
    events: list[tuple[str, int, bool] | None],
) -> None:
    desk = Desk()
    taken: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    classes: dict[Guest, bool] = {}
    for event in [*events, *[None] * len(events)]:
        if event is not None:
            classes[desk.arrive(*event[:2], batch=event[2])] = event[2]
        elif guest := desk.serve():
            taken[guest.key, classes[guest]].append(guest.arrival)
    assert sum(map(len, taken.values())) == len(classes), "nobody is lost"
    assert all(arrivals == sorted(arrivals) for arrivals in taken.values())


@given(st.dictionaries(Keys, st.sampled_from([0.5, 1.0, 3.0]), min_size=2), st.data())
def test_backlogged_keys_are_served_by_weight(weights: dict[str, float], data: st.DataObject) -> None:
    desk = Desk()
    for key, weight in [*weights.items()] * 2:
        desk.arrive(key, data.draw(Sizes), weight)
    for _ in range(40):
        guest = desk.serve()
        assert guest is not None
        desk.arrive(guest.key, data.draw(Sizes), guest.weight)
        shares = [desk.served[key] / weight for key, weight in weights.items()]
        assert max(shares) - min(shares) <= LARGEST / min(weights.values())


@given(st.lists(st.one_of(st.none(), st.tuples(Keys, Sizes)), max_size=60), st.lists(Sizes, min_size=1, max_size=4))
def test_the_wait_is_bounded_by_the_other_keys_shares(events: list[tuple[str, int] | None], own: list[int]) -> None:
    """However many the others send, before and after: each gets as much as this key, and one request more."""
    desk = Desk()
    others = iter([*events, *[("abc"[n % 3], LARGEST) for n in range(200)]])
    for event in events[: len(events) // 2]:
        if event is None:
            desk.serve()
        else:
            desk.arrive(*event)
    mine = [desk.arrive("mine", size) for size in own]
    before = desk.served.copy()
    while (guest := desk.serve()) is not mine[-1]:
        if (event := next(others)) is not None:
            desk.arrive(*event)
        assert guest is not None
    for key in "abc":
        assert desk.served[key] - before[key] <= sum(own) + 2 * LARGEST


def test_an_idle_key_earns_no_credit() -> None:
    desk = Desk()
    for key in "aabb":
        desk.arrive(key, 10)
    order = [desk.serve() for _ in range(4)]
    assert [guest.key for guest in order if guest] == ["a", "b", "a", "b"]
    for _ in range(8):
        desk.arrive("a", 10)
    for _ in range(4):
        desk.serve()
    for _ in range(4):
        desk.arrive("b", 10)
    assert [guest.key for guest in (desk.serve() for _ in range(4)) if guest].count("b") == 2


@given(st.lists(Keys, min_size=1, max_size=6), st.lists(Keys, min_size=200, max_size=200))
def test_batch_requests_go_last_but_do_not_starve(batch: list[str], others: list[str]) -> None:
    desk = Desk()
    put_off = {desk.arrive(key, batch=True) for key in batch}
    desk.arrive("a")
    passed = most = 0
    for key in others:
        desk.arrive(key)
        guest = desk.serve()
        assert guest is not None
        passed = 0 if guest in put_off else passed + 1
        put_off.discard(guest)
        most = max(most, passed if put_off else 0)
    assert not put_off
    assert BATCH_EVERY <= most <= BATCH_EVERY + 4, "one joins the others, and those of its key are in turn then"
    desk.arrive("a", batch=True)
    desk.arrive("b")
    while len(desk.queue) > 1:
        guest = desk.serve()
        assert guest is not None and not guest.batch


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _harness(places: dict[str, int]) -> tuple[Desk, list[Guest]]:
    """Guests who all have a place."""
    desk, running = Desk(), []
    for key, count in places.items():
        for _ in range(count):
            guest = desk.arrive(key)
            desk.queue.take(guest)
            desk.queue.mark_running(guest)
            running.append(guest)
    return desk, running


def _move_in(desk: Desk, running: list[Guest], guest: Guest) -> Guest | None:
    gone = desk.queue.victim(guest, running)
    if gone is not None:
        running.remove(gone)
        desk.queue.mark_stopped(gone)
        desk.queue.add(gone)
        desk.queue.take(guest)
        desk.queue.mark_running(guest)
        running.append(guest)
    return gone


@given(st.integers(1, 16), st.integers(1, 20), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_flood_keeps_its_share_of_the_places_and_no_more(places: int, wanted: int, weight: float) -> None:
    desk, running = _harness({"flood": places})
    for _ in range(wanted):
        gone = _move_in(desk, running, desk.arrive("other", weight=weight))
        assert gone is None or gone.arrival == max(guest.arrival for guest in [*running, gone] if guest.key == gone.key)
    count = Counter(guest.key for guest in running)
    share = places * weight / (1 + weight)
    assert count["other"] == min(wanted, int(share)), "as many as are its own, whole ones"
    assert all(desk.queue.victim(guest, running) is None for guest in desk.queue), "and there it stays"


@given(st.lists(st.tuples(Keys, st.sampled_from([1.0, 2.0]), st.integers(0, 2 * TURN)), min_size=1), Keys)
def test_nobody_makes_way_who_has_had_less_or_may_not(running: list[tuple[str, float, int]], key: str) -> None:
    weights = {name: weight for name, weight, _ in running}
    desk, guests = Desk(), []
    for name, _, new_tokens in running:
        guest = desk.arrive(name, weight=weights[name])
        desk.queue.take(guest)
        desk.queue.mark_running(guest)
        guest.new_tokens, guest.is_preemptible = new_tokens, new_tokens % 2 == 0
        guests.append(guest)
    wanting = desk.arrive(key, weight=weights.get(key, 1.0))
    for guest in guests:
        desk.queue.charge(guest, guest.new_tokens)
    gone = desk.queue.victim(wanting, guests)
    if gone is not None:
        assert gone.is_preemptible and gone.key != key
        assert desk.queue.standing(gone)[1] >= desk.queue.standing(wanting)[1]
    elif not any(guest.key == key for guest in guests):
        settled = [guest for guest in guests if guest.is_preemptible and guest.new_tokens >= TURN]
        assert not settled, "who has nothing at all gets a turn"


def test_what_nobody_waits_for_makes_way_first() -> None:
    desk, running = _harness({"a": 3})
    slow = desk.arrive("b", batch=True)
    desk.queue.take(slow)
    desk.queue.mark_running(slow)
    running.append(slow)
    assert desk.queue.victim(desk.arrive("b", batch=True), running) is None, "and for its like nobody does"
    assert desk.queue.victim(desk.arrive("a"), running) is slow, "not even its own key's"


# ── who may come in ──────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(1, 6)), max_size=80), st.integers(1, 20))
def test_a_full_queue_has_room_for_each_key(events: list[tuple[str, bool, int]], limit: int) -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 0.1}
    present: list[tuple[str, float, int]] = []
    for key, leaves, answers in events:
        mine = [entry for entry in present if entry[0] == key]
        if leaves and mine:
            present.remove(mine[0])
            continue
        total = sum(count for _, _, count in present)
        if may_enqueue(key, weights[key], present, limit, answers):
            present.append((key, weights[key], answers))
        else:
            assert mine or answers > 1, "who has nothing there gets a place"
            assert total + answers > limit // 2
        assert sum(count for _, _, count in present) <= 2 * limit + 4


@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 30))
def test_a_single_key_may_fill_the_queue(limit: int, present: int, answers: int) -> None:
    here = [("", 1.0, 1)] * present
    assert may_enqueue("", 1.0, here, limit, answers) == (present + answers <= limit)
    assert may_enqueue("", 1.0, [("", 1.0, present)] if present else [], limit, answers) == (present + answers <= limit)


def test_a_flooding_key_frees_queue_space_over_its_share() -> None:
    present = [("flood", 1.0, 1)] * 10
    assert may_enqueue("other", 1.0, present, 10)
    assert may_enqueue("other", 1.0, present, 10, answers=5), "its half"
    assert not may_enqueue("other", 1.0, present, 10, answers=6)
    present.append(("other", 1.0, 1))
    assert may_enqueue("other", 1.0, present, 10, answers=4), "a flood that came first has no more right to its half"
    assert not may_enqueue("other", 1.0, present, 10, answers=5)
    assert not may_enqueue("flood", 1.0, present[3:], 10), "it has more than its half"
    assert may_enqueue("other", 1.0, present[3:], 10)
