"""Which replica gets a request: one that likely holds the beginning of its prompt, unless others are much less busy.

What a request says is cut into blocks of characters, and a block's number stands for everything up to its end. So a
router need not keep texts, and need not ask the replicas: it remembers which blocks it has sent where. Routers do not
talk to each other. Where none of them knows a prompt, they make the same choice by hashing it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

BLOCK = 256
"""Characters: some sixty tokens of English."""
LONGEST = 2048
"""Blocks of a chain. Two prompts that are the same so far need not be told apart."""
CAPACITY = 4096
"""Blocks that a replica is thought to hold: a quarter of a million tokens."""

CROWD = 16.0
"""Going where all places are taken is as bad as reading so many more blocks, and in proportion where some are."""
NEAR = 4.0
"""Among equals, who is less busy by no more than this (in blocks, as above) is no better."""
SLACK = 0.25
"""A replica with a free place is never too busy, nor is one that has its share of all requests and this much more."""

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Load:
    """Of a replica, as far as the router knows."""

    running: int
    waiting: int
    slots: int


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    known_blocks: int
    """How much of the chain it likely holds."""
    reason: Literal["prefix", "load", "new"]
    """Nobody who may be asked holds more; somebody does, but is too busy; nobody holds anything of it."""


def chain_of(texts: Iterable[str], block: int = BLOCK, *, apart: str = "") -> tuple[int, ...]:
    """A number for each block of what a request says, made of all that comes before the block's end.

    Two chains are alike as far as what they stand for is, in every process and on every machine. Texts come in the
    order in which the model reads them. A block ends where its text does, so that a conversation that goes on begins
    with all of what it was, however short its messages are. `apart` is what keeps caches apart: a tenant, an adapter.
    """
    chain: list[int] = []
    digest = apart.encode("utf-8", "surrogatepass")
    for text in texts:
        for at in range(0, max(len(text), 1), block):
            if len(chain) == LONGEST:
                return tuple(chain)
            # Half a surrogate pair is no UTF-8, but JSON can say it.
            part = text[at : at + block].encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(digest + b"\0" + part, digest_size=8).digest()
            chain.append(int.from_bytes(digest, "big"))
    return tuple(chain)


class Router:
    """Remembers who was sent what. It has no clock and draws no lots: the same history gives the same choices."""

    def __init__(self, names: Iterable[str] = (), capacity: int = CAPACITY) -> None:
        """`capacity` is how many blocks a replica's cache has room for; as many are remembered of each."""
        self._capacity = capacity
        self._replicas: dict[str, _Replica] = {}
        self._holders: dict[int, set[str]] = {}
        """Of first blocks, so that not everybody has to be looked at."""
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """One more that may be chosen, and holds nothing yet."""
        self.remove(name)
        self._replicas[name] = _Replica(name, self._capacity)

    def remove(self, name: str) -> None:
        if (replica := self._replicas.pop(name, None)) is not None:
            self._let_go(name, replica)

    def forget(self, name: str) -> None:
        """It was started anew, and holds nothing."""
        if name in self._replicas:
            self.add(name)

    def began(self, name: str, chain: tuple[int, ...]) -> None:
        """It computes this prompt, so it will hold it. Of one that has been removed nothing is remembered."""
        if chain and (replica := self._replicas.get(name)) is not None:
            self._let_go(name, replica.hold(chain))
            self._holders.setdefault(chain[0], set()).add(name)

    def choose(self, chain: tuple[int, ...], loads: Mapping[str, Load], without: Collection[str] = ()) -> Choice | None:
        """Who gets it; None if nobody is there. Only replicas whose load is told are.

        Reading what is not known and standing in line both take time, so the one with the least of both is chosen.
        Where no place is free nobody gets more than their share, however much they know: then another will know too.
        """
        replicas = self._replicas
        there = [
            (name, load.running + load.waiting, load.slots or 1)
            for name, load in loads.items()
            if name in replicas and name not in without
        ]
        if not there:
            return None
        demand, places = sum([busy for _, busy, _ in there]) + 1, sum([slots for _, _, slots in there])
        share = max(1.0, (1 + SLACK) * demand / places)
        holders = self._holders.get(chain[0], set()) if chain else set()
        known = {name: replicas[name].known(chain) for name in holders if name in loads and name not in without}
        # Not everybody can have more than their share, so somebody is left.
        scored = [
            ((knows := known.get(name, 0)) - CROWD * busy / slots, knows, name)
            for name, busy, slots in there
            if busy < share * slots
        ]
        best, most, _ = max(scored)
        peers = [name for worth, knows, name in scored if knows == most and worth >= best - NEAR]
        # The first block that is new tells this conversation from others with the same beginning.
        key = chain[min(most, len(chain) - 1)] if chain else 1
        chosen = max(peers, key=lambda name: (key * replicas[name].number & _MASK, name))
        longest = max(known.values(), default=0)
        return Choice(chosen, most, "new" if not longest else "load" if most < longest else "prefix")

    def _let_go(self, name: str, blocks: Iterable[int]) -> None:
        """It holds these no longer."""
        for block in blocks:
            if (holders := self._holders.get(block)) is not None:
                holders.discard(name)
                if not holders:
                    del self._holders[block]


class Blocks:
    """As many as a cache has room for. Those that were not asked for the longest make room for new ones.

    Who holds a block holds all that come before it in its chain, because those count as asked for later.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def known(self, chain: tuple[int, ...]) -> int:
        """How many of the first are held."""
        blocks = self._blocks
        return bisect_left(chain, True, key=lambda block: block not in blocks)

    def hold(self, chain: tuple[int, ...]) -> list[int]:
        """Those that had to make room for it."""
        for block in reversed(chain[: self._capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        return [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._capacity)]


class _Replica(Blocks):
    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(capacity)
        self.number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") | 1
        """Odd, so that multiplying by it, modulo 2**64, is a hash of its own for each name."""
