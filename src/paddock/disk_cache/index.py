"""Which spans are on disk, and which of them are a prefix of a prompt. No I/O."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from paddock.disk_cache.entry import Entry
from paddock.disk_cache.keys import TOKEN, StateKey, encode_tokens


@dataclass(slots=True)
class _Siblings:
    """The spans after one prefix, in the order of their tokens. So those most like a prompt are next to it."""

    tokens: list[bytes] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    longest: int = 0
    """No span has more bytes of tokens."""

    def find(self, tokens: bytes) -> tuple[int, bool]:
        at = bisect_left(self.tokens, tokens)
        return at, at < len(self.tokens) and self.tokens[at] == tokens

    def matching(self, tokens: bytes) -> Iterator[tuple[Entry, int]]:
        """Every span that is a prefix of the tokens, and the two that share most with them; with how many bytes they
        share, a whole number of tokens.
        """
        at = bisect_right(self.tokens, tokens)
        if at < len(self.tokens) and (shared := _shared(self.tokens[at], tokens)):
            yield self.entries[at], shared
        # A shorter span that is a prefix of the tokens is a prefix of what the last one shares with them.
        while at:
            found = self.tokens[at - 1]
            shared = _shared(found, tokens)
            if not shared:
                return
            yield self.entries[at - 1], shared
            shorter = shared - TOKEN if shared == len(found) else shared
            at = bisect_right(self.tokens, tokens[:shorter], hi=at - 1)


class DiskIndex:
    """The spans of one state key."""

    def __init__(self, key: StateKey, entries: Iterable[Entry] = ()) -> None:
        self._key = key
        self._after: dict[bytes, _Siblings] = {}
        self._count = 0
        self.bytes = 0
        """Of all files."""
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for siblings in self._after.values():
            yield from siblings.entries

    def __contains__(self, entry: Entry) -> bool:
        siblings = self._after.get(entry.parent)
        return siblings is not None and siblings.find(entry.token_bytes)[1]

    def add(self, entry: Entry) -> None:
        siblings = self._after.setdefault(entry.parent, _Siblings())
        at, known = siblings.find(entry.token_bytes)
        if known:
            self.bytes += entry.size - siblings.entries[at].size
            siblings.entries[at] = entry
            return
        siblings.tokens.insert(at, entry.token_bytes)
        siblings.entries.insert(at, entry)
        siblings.longest = max(siblings.longest, len(entry.token_bytes))
        self._count += 1
        self.bytes += entry.size

    def remove(self, entry: Entry) -> None:
        """Does nothing if the entry is not in the index."""
        siblings = self._after.get(entry.parent)
        if siblings is None:
            return
        at, known = siblings.find(entry.token_bytes)
        if not known:
            return
        self._count -= 1
        self.bytes -= siblings.entries[at].size
        del siblings.tokens[at], siblings.entries[at]
        if not siblings.entries:
            del self._after[entry.parent]

    def match(self, namespace: str, tokens: Sequence[int], *, partial: bool = True) -> list[tuple[Entry, int]]:
        """The spans that hold the longest prefix of the tokens, in order, and how many tokens of each are used.

        All are used whole but the last, which may be used in part if `partial` is set. If several chains are equally
        long, the one with the smallest files.
        """
        data = encode_tokens(tokens)
        prefix, hashed = self._key.prefix(namespace), 0
        # Positions that a chain of whole spans reaches, with the bytes of its files and its last span.
        reached: dict[int, tuple[int, Entry | None]] = {0: (0, None)}
        ahead = [0]
        best: tuple[int, int, list[tuple[Entry, int]]] = (0, 0, [])
        while ahead:
            position = heapq.heappop(ahead)
            digest = prefix.extend(data[hashed:position])
            hashed = position
            siblings = self._after.get(digest)
            if siblings is None:
                continue
            read_before = reached[position][0]
            for entry, shared in siblings.matching(data[position : position + siblings.longest]):
                is_whole = shared == len(entry.token_bytes)
                if not is_whole and not partial:
                    continue
                end, read = position + shared, read_before + entry.size
                if (-end, read) < best[:2]:
                    best = (-end, read, [(entry, shared // TOKEN)])
                if is_whole and (end not in reached or read < reached[end][0]):
                    if end not in reached:
                        heapq.heappush(ahead, end)
                    reached[end] = (read, entry)
        chain = best[2]
        while chain and chain[0][0].start:
            _, before = reached[chain[0][0].start * TOKEN]
            assert before is not None, "a position after the first was reached by a span"
            chain.insert(0, (before, len(before)))
        return chain


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes of whole tokens two sequences share at their start."""
    low, high = 0, min(len(one), len(other)) // TOKEN
    if one[: high * TOKEN] == other[: high * TOKEN]:
        return high * TOKEN
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * TOKEN : middle * TOKEN] == other[low * TOKEN : middle * TOKEN]:
            low = middle
        else:
            high = middle - 1
    return low * TOKEN
