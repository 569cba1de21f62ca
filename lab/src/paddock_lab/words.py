"""Synthetic text of a given length that is in no cache."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

Message = dict[str, str]

# Each word is one token of common vocabularies, so that the number of words is nearly the number of tokens.
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
_MEASURED_WORDS = 500
"""Length of the text that is tokenized to measure words per token."""


def words(count: int, *, tag: random.Random, rest: random.Random) -> str:
    """`count` words. The first ones are drawn from `tag`, so that no other text begins with them."""
    first = tag.choices(_WORDS, k=_TAG_WORDS)
    return " ".join([*first, *rest.choices(_WORDS, k=max(1, count - _TAG_WORDS))])


def words_per_token(counters: Iterable[Callable[[str], int | None]]) -> float:
    """Measured by the first counter that works; 1 without one."""
    chance = random.Random(0)
    text = words(_MEASURED_WORDS, tag=chance, rest=chance)
    return next((_MEASURED_WORDS / tokens for count in counters if (tokens := count(text))), 1.0)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
