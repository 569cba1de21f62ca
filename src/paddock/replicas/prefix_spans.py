"""Which replicas have which prefixes of the last prompts, for display."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paddock.replicas.prompts import texts_of
from paddock.replicas.routing import blocks_of
from paddock.types import GenerateRequest

MOST_PROMPTS = 24
"""Prompts that are remembered. Their tree has less than twice as many spans."""
LONGEST_TEXT = 120
"""Characters of a span's text."""
_BLOCKS_WITH_TEXT = 64
"""The first blocks of a prompt, whose beginnings are remembered. Spans that begin later have no text."""

Holders = Callable[[tuple[int, ...]], Mapping[str, int]]
"""How many leading blocks of a chain each replica has."""


@dataclass(frozen=True, slots=True)
class Prompt:
    chain: tuple[int, ...]
    ends: Sequence[int]
    """How many characters precede the end of each block."""
    texts: Sequence[str]
    """The beginnings of the first blocks."""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class PrefixSpan:
    """A part that the same prompts share."""

    id: int
    """Its place in the list."""
    parent: int | None
    """The part before it."""
    start: int
    """The number of characters before it."""
    characters: int
    prompts: int
    """How many of the last prompts have it."""
    held: Mapping[str, float]
    """The replicas that likely have it cached, and which share of it."""
    tenant: str
    text: str
    """Its beginning; empty if that is not known."""


class RecentPrompts:
    """The last different prompts. A prompt replaces one that it continues."""

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self._most = most
        self._prompts: list[Prompt] = []

    def add(self, chain: tuple[int, ...], request: GenerateRequest | None) -> None:
        if not chain or request is None:
            return
        ends, texts = array("L"), []
        for number, block in enumerate(blocks_of(texts_of(request))):
            ends.append(len(block) + (ends[-1] if ends else 0))
            if number < _BLOCKS_WITH_TEXT:
                texts.append(block[:LONGEST_TEXT])
        others = [prompt for prompt in self._prompts if not _begins_with(chain, prompt.chain)]
        self._prompts = [Prompt(chain, ends, texts, request.origin.tenant), *others][: self._most]

    def forget(self, tenant: str | None) -> None:
        """Forget the prompts of one tenant, or all."""
        self._prompts = [prompt for prompt in self._prompts if tenant not in (None, prompt.tenant)]

    def spans(self, held: Holders) -> list[PrefixSpan]:
        return spans_of(self._prompts, held)


def spans_of(prompts: Sequence[Prompt], held: Holders) -> list[PrefixSpan]:
    """The tree of these prompts. A span comes after its parent, and the first prompt's spans come first."""
    spans: list[PrefixSpan] = []
    rest: list[tuple[int | None, int, list[Prompt]]] = [(None, 0, group) for group in _groups(prompts, 0)]
    while rest:
        parent, start, group = rest.pop(0)
        first = group[0]
        end = min(_common(first.chain, prompt.chain) for prompt in group)
        before = first.ends[start - 1] if start else 0
        span = PrefixSpan(
            len(spans),
            parent,
            before,
            first.ends[end - 1] - before,
            len(group),
            {
                name: min(1.0, (known - start) / (end - start))
                for name, known in held(first.chain).items()
                if known > start
            },
            first.tenant,
            first.texts[start] if start < len(first.texts) else "",
        )
        spans.append(span)
        rest[:0] = [(span.id, end, part) for part in _groups(group, end)]
    return spans


def _groups(prompts: Sequence[Prompt], at: int) -> Iterator[list[Prompt]]:
    """The prompts with a block at this place, by that block."""
    groups: dict[int, list[Prompt]] = {}
    for prompt in prompts:
        if len(prompt.chain) > at:
            groups.setdefault(prompt.chain[at], []).append(prompt)
    yield from groups.values()


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The number of common leading blocks. Where a block is equal, all before it are."""
    places = range(min(len(one), len(other)))
    return bisect_left(places, True, key=lambda place: one[place] != other[place])


def _begins_with(chain: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    return len(beginning) <= len(chain) and chain[len(beginning) - 1] == beginning[-1]
