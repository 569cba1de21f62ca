"""The requests of the two designs and their order. Sends no requests."""

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
    """False: one token is enough, because the time does not count."""
    tenant: int | None = None


@dataclass(frozen=True)
class Sizes:
    a: int
    b: int
    words_per_token: float = 1.0

    def text(self, tokens: int, rng: random.Random) -> str:
        return words(max(1, round(tokens * self.words_per_token)), tag=rng, rest=rng)


def removal(sizes: Sizes, trials: int, rng: random.Random) -> Iterator[list[Step]]:
    """Send [A, B]; the same with a new turn (a hit); the same without A (a miss). No two trials share a text."""
    for _ in range(trials):
        a, b = (user(sizes.text(tokens, rng)) for tokens in (sizes.a, sizes.b))
        turn = user(sizes.text(_QUESTION, rng))
        yield [
            Step(WARM_UP, [a, _REPLY, b], answer=False),
            Step(HIT, [a, _REPLY, b, _REPLY, turn]),
            Step(MISS, [b, _REPLY, turn]),
        ]


def tenants(sizes: Sizes, trials: int, rng: random.Random, *, count: int, visits: int) -> Iterator[list[Step]]:
    """Many tenants share A, and each has its own B. Each sends `visits` requests, in random order, and continues its
    conversation.
    """
    for _ in range(trials):
        a = user(sizes.text(sizes.a, rng))
        histories = [[a, _REPLY, user(sizes.text(sizes.b, rng))] for _ in range(count)]
        order = [tenant for tenant in range(count) for _ in range(visits)]
        rng.shuffle(order)
        steps: list[Step] = []
        observation: set[int] = set()
        for tenant in order:
            kind = FIRST if not observation else RETURNS if tenant in observation else JOINS
            observation.add(tenant)
            steps.append(Step(kind, list(histories[tenant]), tenant=tenant))
            histories[tenant] += [_REPLY, user(sizes.text(_QUESTION, rng))]
        yield steps
