"""What is sent in which order, by either design. Nobody is asked anything here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from paddock_lab.words import Message, assistant, user, words

_QUESTION = 12
_REPLY = assistant("I have read it.")

WARM_UP, HIT, MISS = "warm-up", "T2", "T3"
FIRST, JOINS, RETURNS = "first", "joins", "returns"


@dataclass(frozen=True)
class Step:
    """One request of a trial."""

    kind: str
    messages: list[Message]
    answer: bool = True
    """False: a single token is enough, and how long it takes is of no interest."""
    tenant: int | None = None


@dataclass(frozen=True)
class Sizes:
    a: int
    b: int
    words_per_token: float = 1.0

    def text(self, tokens: int, chance: random.Random) -> str:
        return words(max(1, round(tokens * self.words_per_token)), tag=chance, rest=chance)


def removal(sizes: Sizes, trials: int, chance: random.Random) -> Iterator[list[Step]]:
    """Warm up with [A, B]; the same and a new turn (a hit); the same without A (a miss). No two trials share a text."""
    for _ in range(trials):
        a, b = (user(sizes.text(tokens, chance)) for tokens in (sizes.a, sizes.b))
        turn = user(sizes.text(_QUESTION, chance))
        yield [
            Step(WARM_UP, [a, _REPLY, b], answer=False),
            Step(HIT, [a, _REPLY, b, _REPLY, turn]),
            Step(MISS, [b, _REPLY, turn]),
        ]


def tenants(sizes: Sizes, trials: int, chance: random.Random, *, count: int, visits: int) -> Iterator[list[Step]]:
    """Many tenants share A, and each has a B of its own. They come in random order, each so many times, and go on with
    their conversation when they come back.
    """
    for _ in range(trials):
        a = user(sizes.text(sizes.a, chance))
        histories = [[a, _REPLY, user(sizes.text(sizes.b, chance))] for _ in range(count)]
        order = [tenant for tenant in range(count) for _ in range(visits)]
        chance.shuffle(order)
        steps: list[Step] = []
        seen: set[int] = set()
        for tenant in order:
            kind = FIRST if not seen else RETURNS if tenant in seen else JOINS
            seen.add(tenant)
            steps.append(Step(kind, list(histories[tenant]), tenant=tenant))
            histories[tenant] += [_REPLY, user(sizes.text(_QUESTION, chance))]
        yield steps
