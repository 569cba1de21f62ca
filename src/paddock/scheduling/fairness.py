"""Whose turn it is. Requests wait by key; the key that has had the least for its weight goes first, with its oldest.

What a key has had are the tokens that were computed for it, prompts and answers alike (virtual token counters, as in
fair queueing). They are counted from when somebody last had to wait, and who begins to wait starts level with those
who do: nobody earns credit by asking for little. Without keys all are one key, and the oldest goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, Protocol, TypeVar

# While others wait, one of so many that begin is of those for whose answers nobody waits.
BATCH_EVERY = 16
# Who has no place at all may take one from somebody who has used it for this many tokens, should nobody have too many.
TURN = 256
# For so many seconds of computing a key that has been here is expected to come again.
MEMORY = 10.0


class Waiting(Protocol):
    """What is known of a request: whose it is, and since when it waits."""

    key: str
    weight: float
    batch: bool
    arrival: int


class Running(Waiting, Protocol):
    @property
    def stay(self) -> int:
        """How many tokens further it has come since it has its place."""

    @property
    def may_step_back(self) -> bool:
        """Whether that would not waste more than it is worth."""


Item = TypeVar("Item", bound=Waiting)
Guest = TypeVar("Guest", bound=Running)


@dataclass(slots=True)
class _Account(Generic[Item]):
    """One key's part in one class."""

    weight: float = 1.0
    served: float = 0.0
    """Tokens that were computed for it, divided by its weight."""
    places: int = 0
    """How many of its requests are running."""
    waiting: deque[Item] = field(default_factory=deque)

    @property
    def standing(self) -> tuple[float, float]:
        """Less goes first."""
        return self.served, self.places / self.weight

    def first(self, ready: Callable[[Item], bool]) -> Item | None:
        return next(filter(ready, self.waiting), None)

    def insert(self, item: Item) -> None:
        """By arrival: one that has to wait again is older than those that never ran."""
        if not self.waiting or self.waiting[-1].arrival < item.arrival:
            self.waiting.append(item)
        else:
            self.waiting.insert(sum(other.arrival < item.arrival for other in self.waiting), item)


class _Accounts(Generic[Item]):
    """Those of one class, by key."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Account[Item]] = {}

    def of(self, item: Waiting) -> _Account[Item]:
        account = self._by_key.setdefault(item.key, _Account())
        account.weight = item.weight
        return account

    def add(self, item: Item) -> None:
        level = min((account.served for account in self._waited_for()), default=None)
        if level is None:
            self._forget()
            level = 0.0
        account = self.of(item)
        if not account.waiting:
            account.served = max(account.served, level)
        account.insert(item)

    def first(self, ready: Callable[[Item], bool] = lambda _: True) -> Item | None:
        heads = [(account, head) for account in self._waited_for() if (head := account.first(ready)) is not None]
        if not heads:
            return None
        return min(heads, key=lambda found: (*found[0].standing, found[1].arrival))[1]

    @property
    def active(self) -> int:
        """How many keys wait or run."""
        return sum(bool(account.places or account.waiting) for account in self._by_key.values())

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(account.waiting for account in self._waited_for())

    def __len__(self) -> int:
        return sum(len(account.waiting) for account in self._waited_for())

    def _waited_for(self) -> list[_Account[Item]]:
        return [account for account in self._by_key.values() if account.waiting]

    def _forget(self) -> None:
        """Nobody waits, so everybody has had what they asked for: what that was is history."""
        self._by_key = {key: account for key, account in self._by_key.items() if account.places}
        for account in self._by_key.values():
            account.served = 0.0


class FairQueue(Generic[Item]):
    """Who waits, in two classes, and who may have to make way for them.

    Those for whose answers nobody waits (`batch`) go when nobody else waits. So that they are not put off for ever, one
    of them joins the others now and then.
    """

    def __init__(self) -> None:
        self._interactive: _Accounts[Item] = _Accounts()
        self._batch: _Accounts[Item] = _Accounts()
        self._since_batch = 0

    def __iter__(self) -> Iterator[Item]:
        return chain(self._interactive, self._batch)

    def __len__(self) -> int:
        return len(self._interactive) + len(self._batch)

    @property
    def parties(self) -> int:
        """How many there are who wait or run and have nothing to do with each other."""
        return self._interactive.active + self._batch.active

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, item: Item) -> None:
        self._class_of(item).add(item)

    def first(self, ready: Callable[[Item], bool] = lambda _: True) -> Item | None:
        """Whose turn it is among those that are ready."""
        return self._interactive.first(ready) or self._batch.first(ready)

    def take(self, item: Item) -> None:
        """It waits no longer, because its turn has come."""
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
        """It has had a part of what it waits for: the others of its key are next."""
        waiting = self._account(item).waiting
        waiting.remove(item)
        waiting.append(item)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, item: Item) -> None:
        """It has a place now."""
        self._account(item).places += 1

    def leave(self, item: Item) -> None:
        self._account(item).places -= 1

    def places(self, item: Item) -> int:
        """How many its key has."""
        return self._account(item).places

    def is_here(self, item: Item) -> bool:
        """Whether its key runs or waits."""
        account = self._account(item)
        return bool(account.places or account.waiting)

    def charge(self, item: Item, tokens: int) -> None:
        """So many tokens were computed for it."""
        account = self._account(item)
        account.served += tokens / account.weight

    def standing(self, item: Item) -> tuple[bool, float, float]:
        """How it stands beside others of its class and the other one: less goes first."""
        return item.batch, *self._account(item).standing

    def last(self, running: Iterable[Item]) -> Item:
        """Who steps back where one has to: the youngest of the key that has most places for its weight."""
        return max(running, key=lambda item: (item.batch, self._account(item).standing[1], item.arrival))

    def who_makes_way(self, wanting: Item, running: Sequence[Guest]) -> Guest | None:
        """Whose place it may have, if none is free.

        That of the youngest of those for whose answers nobody waits. Else of the key that has most for its weight, if
        that key would have no less then than the one that waits; or, where that one has nothing at all, of somebody
        who has had their turn. Never for one that has had more than whom it would send away.
        """
        if wanting.batch:
            return None
        candidates = [guest for guest in running if guest.may_step_back]
        put_off = [guest for guest in candidates if guest.batch]
        if put_off:
            return max(put_off, key=lambda guest: guest.arrival)
        mine = self._interactive.of(wanting)
        found: list[tuple[float, int, Guest]] = []
        for guest in candidates:
            theirs = self._interactive.of(guest)
            left = (theirs.places - 1) / theirs.weight
            too_many = theirs.served >= mine.served and left >= (mine.places + 1) / mine.weight
            if too_many or (mine.places == 0 and guest.stay >= TURN and theirs.served > mine.served):
                found.append((left, guest.arrival, guest))
        return max(found, key=lambda entry: entry[:2])[2] if found else None

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _class_of(self, item: Waiting) -> _Accounts[Item]:
        return self._batch if item.batch else self._interactive

    def _account(self, item: Item) -> _Account[Item]:
        return self._class_of(item).of(item)


class Expected:
    """Keys that were here a moment ago, and may come again at any time. `now` is how long has been computed so far."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def left(self, key: str, now: float) -> None:
        self._until[key] = now + MEMORY

    def came(self, key: str) -> None:
        self._until.pop(key, None)

    def anybody(self, now: float) -> bool:
        self._until = {key: until for key, until in self._until.items() if until > now}
        return bool(self._until)


def has_place(key: str, weight: float, present: Sequence[tuple[str, float, int]], limit: int, answers: int = 1) -> bool:
    """Whether a request for so many answers may come in where `limit` answers may be; the requests `present` are told
    by their keys, weights and answers.

    From when it is half full a key gets no more than its share of it, and that much also when others have filled it
    before it came. So there are never more than twice the `limit`, and one for each key.
    """
    total = sum(count for _, _, count in present)
    if total + answers <= limit // 2:
        return True
    weights = {**{name: heaviness for name, heaviness, _ in present}, key: weight}
    held = sum(count for name, _, count in present if name == key)
    share = max(1.0, limit * weight / sum(weights.values()))
    return held + answers < share + 1
