"""Routes a request to the replica that likely has the longest prefix of its prompt cached, unless others are less busy.

A prompt is cut into blocks of characters, and a block's hash covers everything up to its end. So the router stores no
texts and asks no replica: it remembers which blocks it sent where. Routers do not communicate. For an unknown prompt
they make the same choice by hashing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

BLOCK = 256
"""Characters: about sixty tokens of English."""
LONGEST = 2048
"""Blocks of a chain. Longer prompts are compared by this many blocks."""
CAPACITY = 4096
"""Blocks that a replica is assumed to cache: a quarter of a million tokens."""

CROWD = 16.0
"""A replica with all slots busy costs as much as this many uncached blocks; in proportion if some are busy."""
NEAR = 4.0
"""Load differences up to this many blocks are ignored between replicas with the same cached prefix."""
SLACK = 0.25
"""A replica is too busy if it has no free slot and more than its share of all requests plus this fraction."""

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a replica as known to the router."""

    running: int
    waiting: int
    slots: int


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    known_blocks: int
    """How many blocks of the chain it likely has cached."""
    reason: Literal["prefix", "load", "new"]
    """`prefix`: it has the longest prefix; `load`: another has a longer one but is too busy; `new`: unknown prompt."""


def chain_of(texts: Iterable[str], block: int = BLOCK, *, apart: str = "") -> tuple[int, ...]:
    """A hash for each block of the texts, each covering all text up to the block's end.

    Equal prefixes give equal hashes in every process and on every machine. The texts come in the order in which the
    model reads them. A block ends with its text, so that a continued conversation starts with the blocks of the earlier
    one. `apart` separates caches: a tenant, an adapter.
    """
    chain: list[int] = []
    digest = apart.encode("utf-8", "surrogatepass")
    for part in blocks_of(texts, block):
        # JSON may contain lone surrogates, which UTF-8 does not allow.
        digest = hashlib.blake2b(digest + b"\0" + part.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        chain.append(int.from_bytes(digest, "big"))
    return tuple(chain)


def blocks_of(texts: Iterable[str], block: int = BLOCK) -> Iterator[str]:
    """The texts of the blocks of a chain."""
    parts = (text[at : at + block] for text in texts for at in range(0, max(len(text), 1), block))
    return islice(parts, LONGEST)


class Router:
    """Remembers which replica got which blocks. No clock, no randomness: the same history gives the same choices."""

    def __init__(self, names: Iterable[str] = (), capacity: int = CAPACITY) -> None:
        """`capacity` is the number of blocks remembered per replica: the size of its cache."""
        self._capacity = capacity
        self._replicas: dict[str, _Replica] = {}
        self._holders: dict[int, set[str]] = {}
        """Replicas by first block, so that not all of them must be searched."""
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a replica with an empty cache."""
        self.remove(name)
        self._replicas[name] = _Replica(name, self._capacity)

    def remove(self, name: str) -> None:
        if (replica := self._replicas.pop(name, None)) is not None:
            self._evict(name, replica)

    def forget(self, name: str) -> None:
        """It restarted: its cache is empty."""
        if name in self._replicas:
            self.add(name)

    def began(self, name: str, chain: tuple[int, ...]) -> None:
        """It computes this prompt and will cache it. Ignored for removed replicas."""
        if chain and (replica := self._replicas.get(name)) is not None:
            self._evict(name, replica.hold(chain))
            self._holders.setdefault(chain[0], set()).add(name)

    def held(self, chain: tuple[int, ...]) -> dict[str, int]:
        """How many leading blocks each replica likely has cached. Other threads may call it."""
        return {name: replica.known(chain) for name, replica in list(self._replicas.items())}

    def choose(
        self,
        chain: tuple[int, ...],
        loads: Mapping[str, Load],
        without: Collection[str] = (),
        *,
        is_batch: bool = False,
    ) -> Choice | None:
        """The replica for this prompt, among those in `loads`; None if there is none.

        If no slot is free, no replica gets more than its share, whatever it has cached. Another then caches the prompt.
        `is_batch`: the prompt is that of a line in a batch.
        """
        there = [
            (name, load.running + load.waiting, load.slots or 1)
            for name, load in loads.items()
            if name in self._replicas and name not in without
        ]
        if not there:
            return None
        demand, places = sum([busy for _, busy, _ in there]) + 1, sum([slots for _, _, slots in there])
        share = max(1.0, (1 + SLACK) * demand / places)
        # Not all replicas can exceed their share, so at least one is left.
        allowed = [(name, busy, slots) for name, busy, slots in there if busy < share * slots]
        holders = self._holders.get(chain[0], set()) if chain else set()
        known = {name: self._replicas[name].known(chain) for name in holders if name in loads and name not in without}
        chosen = _best_for_batch(allowed, known) if is_batch else self._cheapest(allowed, known, chain)
        most, longest = known.get(chosen, 0), max(known.values(), default=0)
        return Choice(chosen, most, "new" if not longest else "load" if most < longest else "prefix")

    def _cheapest(
        self, allowed: Iterable[tuple[str, int, int]], known: Mapping[str, int], chain: tuple[int, ...]
    ) -> str:
        """Computing uncached blocks and waiting for a slot both take time: the replica with the lowest sum."""
        scored = [((knows := known.get(name, 0)) - CROWD * busy / slots, knows, name) for name, busy, slots in allowed]
        best, most, _ = max(scored)
        peers = [name for worth, knows, name in scored if knows == most and worth >= best - NEAR]
        # The first new block distinguishes this conversation from others with the same prefix.
        key = chain[min(most, len(chain) - 1)] if chain else 1
        return max(peers, key=lambda name: (key * self._replicas[name].number & _MASK, name))

    def _evict(self, name: str, blocks: Iterable[int]) -> None:
        """It no longer caches these blocks."""
        for block in blocks:
            if (holders := self._holders.get(block)) is not None:
                holders.discard(name)
                if not holders:
                    del self._holders[block]


def _best_for_batch(allowed: Iterable[tuple[str, int, int]], known: Mapping[str, int]) -> str:
    """Nobody waits for a line of a batch, so it may wait for a slot of the replica that has its prefix, unless another
    replica has a free one. Of replicas with the same prefix, the least busy.
    """
    ranked = [(busy < slots, known.get(name, 0), -busy / slots, name) for name, busy, slots in allowed]
    return max(ranked)[-1]


class Blocks:
    """An LRU set of blocks.

    It holds every predecessor of a block that it holds, because predecessors count as used later.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def known(self, chain: tuple[int, ...]) -> int:
        """How many leading blocks are held."""
        blocks = self._blocks
        return bisect_left(chain, True, key=lambda block: block not in blocks)

    def hold(self, chain: tuple[int, ...]) -> list[int]:
        """Add the chain; returns the evicted blocks."""
        for block in reversed(chain[: self._capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        return [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._capacity)]


class _Replica(Blocks):
    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(capacity)
        self.number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") | 1
        """Odd, so that multiplying by it modulo 2**64 gives each name its own hash function."""
