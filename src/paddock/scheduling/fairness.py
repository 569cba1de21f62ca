"""Fair queueing between keys: the key with the least service for its weight goes first, with its oldest request.

Service is the number of tokens computed for a key, prompts and answers alike (virtual token counters). Counters are
reset when nothing waits, and a key that starts to wait begins at the lowest counter of the waiting keys, so an idle key
earns no credit. Without keys this is first come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, Protocol, TypeVar

# While interactive requests wait, one of this many admitted requests is a batch request.
BATCH_EVERY = 16
# A key without a slot may take one from a request that has computed this many tokens in it.
TURN = 256
# A key that has left is expected back for this many seconds of computing.
RECENT_SECONDS = 10.0


class Waiting(Protocol):
    """What the queue reads of a waiting request."""

    key: str
    weight: float
    batch: bool
    arrival: int
    """Its number among all requests, set by the queue. 0: it was never queued."""


class Running(Waiting, Protocol):
    @property
    def new_tokens(self) -> int:
        """How many tokens it has computed for the first time since it got its slot."""

    @property
    def is_preemptible(self) -> bool:
        """Whether a preemption would waste less than it gains."""


Item = TypeVar("Item", bound=Waiting)
RunningItem = TypeVar("RunningItem", bound=Running)


@dataclass(slots=True)
class _Account(Generic[Item]):
    """One key in one class."""

    weight: float = 1.0
    served: float = 0.0
    """Tokens computed for it, divided by its weight."""
    slots: int = 0
    """How many of its requests run."""
    waiting: deque[Item] = field(default_factory=deque)

    @property
    def standing(self) -> tuple[float, float]:
        """Lower goes first."""
        return self.served, self.slots / self.weight

    @property
    def is_active(self) -> bool:
        return bool(self.slots or self.waiting)

    def first(self, ready: Callable[[Item], bool]) -> Item | None:
        return next(filter(ready, self.waiting), None)

    def insert(self, item: Item) -> None:
        """Insert by arrival: a preempted request is older than those that never ran."""
        if not self.waiting or self.waiting[-1].arrival < item.arrival:
            self.waiting.append(item)
        else:
            self.waiting.insert(sum(other.arrival < item.arrival for other in self.waiting), item)


class _Accounts(Generic[Item]):
    """The accounts of one class, by key."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Account[Item]] = {}

    def of(self, item: Waiting) -> _Account[Item]:
        account = self._by_key.setdefault(item.key, _Account())
        account.weight = item.weight
        return account

    def add(self, item: Item) -> None:
        level = min((account.served for account in self._waiting()), default=None)
        if level is None:
            self._reset()
            level = 0.0
        account = self.of(item)
        if not account.waiting:
            account.served = max(account.served, level)
        account.insert(item)

    def first(self, ready: Callable[[Item], bool] = lambda _: True) -> Item | None:
        heads = [(account, head) for account in self._waiting() if (head := account.first(ready)) is not None]
        if not heads:
            return None
        return min(heads, key=lambda found: (*found[0].standing, found[1].arrival))[1]

    @property
    def active(self) -> int:
        """How many keys have waiting or running requests."""
        return sum(account.is_active for account in self._by_key.values())

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(account.waiting for account in self._waiting())

    def __len__(self) -> int:
        return sum(len(account.waiting) for account in self._waiting())

    def _waiting(self) -> list[_Account[Item]]:
        return [account for account in self._by_key.values() if account.waiting]

    def _reset(self) -> None:
        """Nothing waits, so every key has had what it asked for: start all counters again."""
        self._by_key = {key: account for key, account in self._by_key.items() if account.slots}
        for account in self._by_key.values():
            account.served = 0.0


class FairQueue(Generic[Item]):
    """Waiting requests in two classes, and the choice of requests to preempt for them.

    Batch requests go when no interactive request waits. So that they do not starve, one of them becomes interactive
    from time to time.
    """

    def __init__(self) -> None:
        self._interactive: _Accounts[Item] = _Accounts()
        self._batch: _Accounts[Item] = _Accounts()
        self._since_batch = 0
        self._arrivals = 0

    def __iter__(self) -> Iterator[Item]:
        return chain(self._interactive, self._batch)

    def __len__(self) -> int:
        return len(self._interactive) + len(self._batch)

    @property
    def active_keys(self) -> int:
        """How many keys have waiting or running requests, counted in each class."""
        return self._interactive.active + self._batch.active

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, item: Item) -> None:
        """Add a request, or a preempted one again, which keeps its arrival."""
        if not item.arrival:
            self._arrivals += 1
            item.arrival = self._arrivals
        self._class_of(item).add(item)

    def first(self, ready: Callable[[Item], bool] = lambda _: True) -> Item | None:
        """The next request among those that are ready."""
        return self._interactive.first(ready) or self._batch.first(ready)

    def take(self, item: Item) -> None:
        """Remove a request from the queue because it is served now."""
        self.remove(item)
        if item.batch:
            self._since_batch = 0
            return
        oldest = self._batch.first()
        if oldest is None:
            return
        self._since_batch += 1
        if self._since_batch >= BATCH_EVERY:
            self._since_batch = 0
            self._batch.of(oldest).waiting.remove(oldest)
            oldest.batch = False
            self._interactive.add(oldest)

    def remove(self, item: Item) -> None:
        self._account(item).waiting.remove(item)

    def rotate(self, item: Item) -> None:
        """Move a request behind the others of its key, because it got a part of its service."""
        waiting = self._account(item).waiting
        waiting.remove(item)
        waiting.append(item)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def mark_running(self, item: Item) -> None:
        self._account(item).slots += 1

    def mark_stopped(self, item: Item) -> None:
        self._account(item).slots -= 1

    def slots(self, item: Item) -> int:
        """How many slots its key has."""
        return self._account(item).slots

    def is_active(self, item: Item) -> bool:
        """Whether its key has waiting or running requests."""
        return self._account(item).is_active

    def charge(self, item: Item, tokens: int) -> None:
        """Count tokens that were computed for a request."""
        account = self._account(item)
        account.served += tokens / account.weight

    def standing(self, item: Item) -> tuple[bool, float, float]:
        """The sort key of a request: lower goes first."""
        return item.batch, *self._account(item).standing

    def youngest(self, running: Iterable[Item]) -> Item:
        """The request to preempt when cells run out: the youngest of the key with most slots for its weight."""
        return max(running, key=lambda item: (item.batch, self._account(item).standing[1], item.arrival))

    def victim(self, waiting: Item, running: Sequence[RunningItem]) -> RunningItem | None:
        """The running request to preempt for one that waits, when no slot is free. None: it must wait.

        First the youngest batch request. Then a request of the key with most slots for its weight, if that key keeps at
        least as many as the waiting key gets; or, if the waiting key has no slot, a request that has had its turn.
        Never a request of a key that has had less service than the waiting key.
        """
        if waiting.batch:
            return None
        candidates = [item for item in running if item.is_preemptible]
        batch = [item for item in candidates if item.batch]
        if batch:
            return max(batch, key=lambda item: item.arrival)
        mine = self._interactive.of(waiting)
        found: list[tuple[float, int, RunningItem]] = []
        for item in candidates:
            theirs = self._interactive.of(item)
            left = (theirs.slots - 1) / theirs.weight
            too_many = theirs.served >= mine.served and left >= (mine.slots + 1) / mine.weight
            if too_many or (mine.slots == 0 and item.new_tokens >= TURN and theirs.served > mine.served):
                found.append((left, item.arrival, item))
        return max(found, key=lambda entry: entry[:2])[2] if found else None

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _class_of(self, item: Waiting) -> _Accounts[Item]:
        return self._batch if item.batch else self._interactive

    def _account(self, item: Item) -> _Account[Item]:
        return self._class_of(item).of(item)


class RecentKeys:
    """Keys that left a moment ago and may come back at any time. `now` is the time spent in steps so far."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, key: str, now: float) -> None:
        self._until[key] = now + RECENT_SECONDS

    def remove(self, key: str) -> None:
        self._until.pop(key, None)

    def any(self, now: float) -> bool:
        self._until = {key: until for key, until in self._until.items() if until > now}
        return bool(self._until)


def may_enqueue(
    key: str, weight: float, present: Sequence[tuple[str, float, int]], limit: int, answers: int = 1
) -> bool:
    """Whether a request for so many answers may join a queue of `limit` answers. `present` are the keys, weights and
    answers of the requests in it.

    When the queue is half full, a key gets no more than its share of it, and always gets that share even if others have
    filled the queue. So there are never more than twice `limit` answers, plus one for each key.
    """
    total = sum(count for _, _, count in present)
    if total + answers <= limit // 2:
        return True
    weights = {**{name: other for name, other, _ in present}, key: weight}
    held = sum(count for name, _, count in present if name == key)
    share = max(1.0, limit * weight / sum(weights.values()))
    return held + answers < share + 1
