"""Which spans are on disk, and which of them are a prefix of a prompt. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from paddock.disk_cache.entry import Entry
from paddock.disk_cache.keys import TOKEN, StateKey, encode_tokens


@dataclass(slots=True)
class _Siblings:
    """The spans after one prefix, in the order of their tokens. So those most like a prompt are next to it."""

    tokens: list[bytes] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    longest: int = 0
    """No span has more bytes of tokens."""

    def add(self, entry: Entry) -> None:
        at = bisect_left(self.tokens, entry.token_bytes)
        self.tokens.insert(at, entry.token_bytes)
        self.entries.insert(at, entry)
        self.longest = max(self.longest, len(entry.token_bytes))

    def remove(self, entry: Entry) -> None:
        at = bisect_left(self.tokens, entry.token_bytes)
        del self.tokens[at], self.entries[at]

    def matching(self, tokens: bytes) -> Iterator[tuple[Entry, int]]:
        """Every span that is a prefix of the tokens, and those that share most with them; with how many tokens they
        share.
        """
        at = bisect_right(self.tokens, tokens)
        if at < len(self.tokens) and (shared := _shared(self.tokens[at], tokens)):
            yield self.entries[at], shared // TOKEN
        # A shorter span that is a prefix of the tokens is a prefix of what the last one shares with them.
        while at:
            found = self.tokens[at - 1]
            shared = _shared(found, tokens)
            if not shared:
                return
            yield self.entries[at - 1], shared // TOKEN
            shorter = shared - TOKEN if shared == len(found) else shared
            at = bisect_right(self.tokens, tokens[:shorter], hi=at - 1)

    def is_shared(self, entry: Entry, longer: bytes) -> bool:
        """Whether spans continue this one that are not a prefix of the `longer` tokens."""
        at = bisect_right(self.tokens, entry.token_bytes)
        while at < len(self.tokens) and self.tokens[at].startswith(entry.token_bytes):
            if not longer.startswith(self.tokens[at]):
                return True
            at += 1
        return False


@dataclass(slots=True)
class _Starts:
    """Where the spans of one namespace start."""

    counts: Counter[int] = field(default_factory=Counter)
    ordered: list[int] = field(default_factory=list)

    def add(self, start: int) -> None:
        self.counts[start] += 1
        if self.counts[start] == 1:
            insort(self.ordered, start)

    def remove(self, start: int) -> None:
        self.counts[start] -= 1
        if not self.counts[start]:
            del self.counts[start], self.ordered[bisect_left(self.ordered, start)]


@dataclass(slots=True, frozen=True)
class _Reach:
    """A chain of spans that ends with this one: where it ends, and the bytes of its files."""

    entry: Entry
    shared: int
    read: int
    before: _Reach | None

    @property
    def end(self) -> int:
        return self.entry.start + self.shared


class DiskIndex:
    """The spans of one state key."""

    def __init__(self, key: StateKey, entries: Iterable[Entry] = ()) -> None:
        self._key = key
        self._after: dict[bytes, _Siblings] = {}
        self._starts: dict[str, _Starts] = {}
        self._names: dict[str, Entry] = {}
        self.bytes = 0
        """Of all files."""
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._names.values())

    def __contains__(self, entry: Entry) -> bool:
        return entry.name in self._names

    def add(self, entry: Entry) -> None:
        self.remove(entry)
        self._names[entry.name] = entry
        self._after.setdefault(entry.parent, _Siblings()).add(entry)
        self._starts.setdefault(entry.namespace, _Starts()).add(entry.start)
        self.bytes += entry.size

    def remove(self, entry: Entry) -> None:
        """Does nothing if the entry is not in the index."""
        self.remove_named([entry.name])

    def remove_named(self, names: Iterable[str]) -> None:
        """Remove entries by the names of their files. Unknown names are ignored."""
        for name in names:
            if (entry := self._names.pop(name, None)) is None:
                continue
            self.bytes -= entry.size
            self._after[entry.parent].remove(entry)
            if not self._after[entry.parent].entries:
                del self._after[entry.parent]
            self._starts[entry.namespace].remove(entry.start)
            if not self._starts[entry.namespace].counts:
                del self._starts[entry.namespace]

    def match(self, namespace: str, tokens: Sequence[int], *, partial: bool = True) -> list[tuple[Entry, int]]:
        """The spans that hold the longest prefix of the tokens, in order, and how many tokens of each match.

        A span starts where the one before it stops to match, or earlier: a branch is written from where it starts. If
        several chains are equally long, the result is the one with the smallest files. Without `partial`, spans are
        used whole or not at all.
        """
        if (starts := self._starts.get(namespace)) is None:
            return []
        data = encode_tokens(tokens)
        prefix, hashed = self._key.prefix(namespace), 0
        best: _Reach | None = None
        open_chains: list[tuple[int, int, _Reach]] = []
        """Chains that later spans can continue, the smallest first."""
        for start in starts.ordered:
            while open_chains and open_chains[0][2].end < start:
                heappop(open_chains)
            if start and not open_chains:
                break
            before = open_chains[0][2] if start else None
            digest = prefix.extend(data[hashed : start * TOKEN])
            hashed = start * TOKEN
            if (siblings := self._after.get(digest)) is None:
                continue
            for entry, shared in siblings.matching(data[hashed : hashed + siblings.longest]):
                if not partial and shared < len(entry):
                    continue
                reach = _Reach(entry, shared, entry.size + (before.read if before else 0), before)
                heappush(open_chains, (reach.read, id(reach), reach))
                if best is None or (-reach.end, reach.read) < (-best.end, best.read):
                    best = reach
        chain: list[tuple[Entry, int]] = []
        while best is not None:
            chain.append((best.entry, best.shared))
            best = best.before
        return chain[::-1]

    def prefixes_of(self, entry: Entry) -> list[tuple[Entry, bool]]:
        """The spans with the same start that are a prefix of this one, the longest first, and whether each is a prefix
        of spans on another path too.
        """
        tokens = entry.token_bytes
        if (siblings := self._after.get(entry.parent)) is None:
            return []
        found = [one for one, shared in siblings.matching(tokens) if len(one) == shared < len(entry)]
        return [(one, siblings.is_shared(one, tokens)) for one in sorted(found, key=len, reverse=True)]


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes of whole tokens two sequences share at their start."""
    low, high = 0, min(len(one), len(other)) // TOKEN
    if one[: high * TOKEN] == other[: high * TOKEN]:
        return high * TOKEN
    if one[:TOKEN] != other[:TOKEN]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * TOKEN : middle * TOKEN] == other[low * TOKEN : middle * TOKEN]:
            low = middle
        else:
            high = middle - 1
    return low * TOKEN
