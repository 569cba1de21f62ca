"""Synthetic text of a chosen length that no cache has seen before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

Message = dict[str, str]

# Each is a single token of the usual vocabularies, so that a number of words is nearly a number of tokens.
_VOCABULARY = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power hour
game line end member law car city community name president team minute idea kid body information back parent face level
office door health person art war history party result change morning reason research girl moment air teacher force
education green blue river mountain forest garden window bridge island market summer winter stone paper music horse bird
"""
_WORDS = _VOCABULARY.split()
_TAG_WORDS = 6
_RULER = 500
"""Words that are counted to know how many make a token."""


def words(count: int, *, tag: random.Random, rest: random.Random) -> str:
    """So many words. The first of them are drawn by `tag`, so that no other text begins as this one does."""
    first = tag.choices(_WORDS, k=_TAG_WORDS)
    return " ".join([*first, *rest.choices(_WORDS, k=max(1, count - _TAG_WORDS))])


def words_per_token(counters: Iterable[Callable[[str], int | None]]) -> float:
    """By the first who can count the tokens of a text; a word is about a token otherwise."""
    chance = random.Random(0)
    text = words(_RULER, tag=chance, rest=chance)
    return next((_RULER / tokens for count in counters if (tokens := count(text))), 1.0)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
