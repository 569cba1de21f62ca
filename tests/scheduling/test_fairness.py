"""Fair queueing, with one slot and requests that are served completely."""

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
class Item:
    key: str = ""
    weight: float = 1.0
    batch: bool = False
    arrival: int = 0
    size: int = 1
    new_tokens: int = 0
    is_preemptible: bool = True


class Server:
    """Serves one request after another."""

    def __init__(self) -> None:
        self.queue: FairQueue[Item] = FairQueue()
        self.served: defaultdict[str, int] = defaultdict(int)
        self.arrivals = 0

    def arrive(self, key: str = "", size: int = 1, weight: float = 1.0, batch: bool = False) -> Item:
        self.arrivals += 1
        item = Item(key, weight, batch, self.arrivals, size)
        self.queue.add(item)
        return item

    def serve(self) -> Item | None:
        item = self.queue.first()
        assert (item is None) == (len(self.queue) == 0), "the next request is served at once"
        if item is not None:
            self.queue.take(item)
            self.queue.mark_running(item)
            self.queue.charge(item, item.size)
            self.queue.mark_stopped(item)
            self.served[item.key] += item.size
        return item


@given(st.lists(st.one_of(st.none(), Sizes)))
def test_without_keys_the_queue_is_first_come_first_served(events: list[int | None]) -> None:
    server = Server()
    order = [server.arrive(size=size) if size else server.serve() for size in events]
    taken = [item.arrival for item, size in zip(order, events, strict=True) if item is not None and size is None]
    assert taken == list(range(1, len(taken) + 1))


@given(st.lists(st.one_of(st.none(), st.tuples(Keys, Sizes, st.booleans()))))
def test_within_a_key_and_class_the_queue_is_first_come_first_served(
    events: list[tuple[str, int, bool] | None],
) -> None:
    server = Server()
    taken: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    classes: dict[Item, bool] = {}
    for event in [*events, *[None] * len(events)]:
        if event is not None:
            classes[server.arrive(*event[:2], batch=event[2])] = event[2]
        elif item := server.serve():
            taken[item.key, classes[item]].append(item.arrival)
    assert sum(map(len, taken.values())) == len(classes), "no request is lost"
    assert all(arrivals == sorted(arrivals) for arrivals in taken.values())


@given(st.dictionaries(Keys, st.sampled_from([0.5, 1.0, 3.0]), min_size=2), st.data())
def test_backlogged_keys_are_served_by_weight(weights: dict[str, float], data: st.DataObject) -> None:
    server = Server()
    for key, weight in [*weights.items()] * 2:
        server.arrive(key, data.draw(Sizes), weight)
    for _ in range(40):
        item = server.serve()
        assert item is not None
        server.arrive(item.key, data.draw(Sizes), item.weight)
        shares = [server.served[key] / weight for key, weight in weights.items()]
        assert max(shares) - min(shares) <= LARGEST / min(weights.values()) + 1e-9  # the shares are rounded


@given(st.lists(st.one_of(st.none(), st.tuples(Keys, Sizes)), max_size=60), st.lists(Sizes, min_size=1, max_size=4))
def test_the_wait_is_bounded_by_the_other_keys_shares(events: list[tuple[str, int] | None], own: list[int]) -> None:
    """Each other key gets as much as this key and one request more, however many requests it sends."""
    server = Server()
    others = iter([*events, *[("abc"[n % 3], LARGEST) for n in range(200)]])
    for event in events[: len(events) // 2]:
        if event is None:
            server.serve()
        else:
            server.arrive(*event)
    mine = [server.arrive("mine", size) for size in own]
    before = server.served.copy()
    while (item := server.serve()) is not mine[-1]:
        if (event := next(others)) is not None:
            server.arrive(*event)
        assert item is not None
    for key in "abc":
        assert server.served[key] - before[key] <= sum(own) + 2 * LARGEST


def test_an_idle_key_earns_no_credit() -> None:
    server = Server()
    for key in "aabb":
        server.arrive(key, 10)
    order = [server.serve() for _ in range(4)]
    assert [item.key for item in order if item] == ["a", "b", "a", "b"]
    for _ in range(8):
        server.arrive("a", 10)
    for _ in range(4):
        server.serve()
    for _ in range(4):
        server.arrive("b", 10)
    assert [item.key for item in (server.serve() for _ in range(4)) if item].count("b") == 2


@given(st.lists(Keys, min_size=1, max_size=6), st.lists(Keys, min_size=200, max_size=200))
def test_batch_requests_go_last_but_do_not_starve(batch: list[str], others: list[str]) -> None:
    server = Server()
    put_off = {server.arrive(key, batch=True) for key in batch}
    server.arrive("a")
    passed = most = 0
    for key in others:
        server.arrive(key)
        item = server.serve()
        assert item is not None
        passed = 0 if item in put_off else passed + 1
        put_off.discard(item)
        most = max(most, passed if put_off else 0)
    assert not put_off
    assert BATCH_EVERY <= most <= BATCH_EVERY + 4, "one batch request becomes interactive"
    server.arrive("a", batch=True)
    server.arrive("b")
    while len(server.queue) > 1:
        item = server.serve()
        assert item is not None and not item.batch


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _harness(places: dict[str, int]) -> tuple[Server, list[Item]]:
    """Running requests: so many of each key."""
    server, running = Server(), []
    for key, count in places.items():
        for _ in range(count):
            item = server.arrive(key)
            server.queue.take(item)
            server.queue.mark_running(item)
            running.append(item)
    return server, running


def _preempt_for(server: Server, running: list[Item], item: Item) -> Item | None:
    gone = server.queue.victim(item, running)
    if gone is not None:
        running.remove(gone)
        server.queue.mark_stopped(gone)
        server.queue.add(gone)
        server.queue.take(item)
        server.queue.mark_running(item)
        running.append(item)
    return gone


@given(st.integers(1, 16), st.integers(1, 20), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_flooding_key_keeps_its_share_of_the_slots_and_no_more(places: int, wanted: int, weight: float) -> None:
    server, running = _harness({"flood": places})
    for _ in range(wanted):
        gone = _preempt_for(server, running, server.arrive("other", weight=weight))
        assert gone is None or gone.arrival == max(item.arrival for item in [*running, gone] if item.key == gone.key)
    count = Counter(item.key for item in running)
    share = places * weight / (1 + weight)
    assert count["other"] == min(wanted, int(share)), "its share, rounded down"
    assert all(server.queue.victim(item, running) is None for item in server.queue), "no further preemption"


@given(st.lists(st.tuples(Keys, st.sampled_from([1.0, 2.0]), st.integers(0, 2 * TURN)), min_size=1), Keys)
def test_no_request_is_preempted_that_had_less_service_or_is_not_preemptible(
    running: list[tuple[str, float, int]], key: str
) -> None:
    weights = {name: weight for name, weight, _ in running}
    server, items = Server(), []
    for name, _, new_tokens in running:
        item = server.arrive(name, weight=weights[name])
        server.queue.take(item)
        server.queue.mark_running(item)
        item.new_tokens, item.is_preemptible = new_tokens, new_tokens % 2 == 0
        items.append(item)
    wanting = server.arrive(key, weight=weights.get(key, 1.0))
    for item in items:
        server.queue.charge(item, item.new_tokens)
    gone = server.queue.victim(wanting, items)
    if gone is not None:
        assert gone.is_preemptible and gone.key != key
        assert server.queue.standing(gone)[1] >= server.queue.standing(wanting)[1]
    elif not any(item.key == key for item in items):
        settled = [item for item in items if item.is_preemptible and item.new_tokens >= TURN]
        assert not settled, "a key without a slot gets one"


def test_batch_requests_are_preempted_first() -> None:
    server, running = _harness({"a": 3})
    slow = server.arrive("b", batch=True)
    server.queue.take(slow)
    server.queue.mark_running(slow)
    running.append(slow)
    assert server.queue.victim(server.arrive("b", batch=True), running) is None, "not for another batch request"
    assert server.queue.victim(server.arrive("a"), running) is slow, "even for the same key"


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
            assert mine or answers > 1, "a key without queued answers gets a place"
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
    assert may_enqueue("other", 1.0, present, 10, answers=5), "its share"
    assert not may_enqueue("other", 1.0, present, 10, answers=6)
    present.append(("other", 1.0, 1))
    assert may_enqueue("other", 1.0, present, 10, answers=4), "a flood that came first has no larger share"
    assert not may_enqueue("other", 1.0, present, 10, answers=5)
    assert not may_enqueue("flood", 1.0, present[3:], 10), "it has more than its share"
    assert may_enqueue("other", 1.0, present[3:], 10)
