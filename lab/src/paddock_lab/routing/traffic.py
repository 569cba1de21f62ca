"""Who asks for what and when. Everything is drawn from the seed, and of a user the same whatever else happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from paddock_lab.bench.lengths import Length, poisson
from paddock_lab.routing.machines import BLOCK_TOKENS
from paddock_lab.routing.replica import Request

_SYSTEM = Length("lognormal:600,0.8")
_QUESTION = Length("lognormal:60,0.8")
_ANSWER = Length("lognormal:120,0.6")
_ONE_OFF = Length("lognormal:400,0.8")
_BURST = Length("lognormal:1500,0.4")
_LONGEST = 8192
"""Tokens of a conversation, which ends before it has more."""


@dataclass(frozen=True)
class Mix:
    """What comes for each replica, so that twice as many have twice as much to do."""

    users: float = 10
    """Who have conversations, one after another."""
    think: float = 20
    """Seconds between an answer and the next question, on average."""
    turns: float = 6
    """Of a conversation, on average."""
    prompts: float = 2
    """System prompts; the most popular is asked twice as often as the second, three times as often as the third."""
    one_offs: float = 0.05
    """Requests in a second that have nothing in common with others."""
    bursts: float = 0.002
    """In a second: moments at which many ask about the same new text."""
    burst_size: int = 12


class Text:
    """The blocks of what has been said so far; those that another one begins with are the same."""

    def __init__(self, before: Text | None = None) -> None:
        self.tokens: int = before.tokens if before else 0
        self._blocks = list(before.whole) if before else []

    @property
    def whole(self) -> tuple[int, ...]:
        return tuple(self._blocks)

    def add(self, tokens: int, chance: random.Random) -> Text:
        self.tokens += tokens
        while len(self._blocks) < self.tokens // BLOCK_TOKENS:
            self._blocks.append(chance.getrandbits(64))
        return self

    def asked(self, answer: int, chance: random.Random, user: int | None = None) -> Request:
        """A request with all of it; the answer is a part of it from then on."""
        chain, tokens = self.whole, self.tokens
        if tokens % BLOCK_TOKENS:
            chain += (chance.getrandbits(64),)
        return Request(chain, tokens, answer, self.add(answer, chance).whole, user)


class Traffic:
    def __init__(self, mix: Mix, replicas: int, seconds: float, seed: int) -> None:
        self._mix, self._replicas, self._seconds = mix, replicas, seconds
        self._chance = random.Random(f"{seed} others")
        prompts = max(1, round(mix.prompts * replicas))
        self._systems = [Text().add(_SYSTEM.draw(self._chance), self._chance) for _ in range(prompts)]
        self._popularity = list(accumulate(1 / rank for rank in range(1, prompts + 1)))
        self._users = [_User(random.Random(f"{seed} user {number}")) for number in range(round(mix.users * replicas))]

    def by_the_clock(self) -> Iterator[tuple[float, Request]]:
        """The moments of requests that come whatever happens to others: first ones, one-offs and bursts."""
        for number, user in enumerate(self._users):
            yield user.chance.uniform(0, self._mix.think), self._question(number)
        for moment in self._moments(self._mix.one_offs):
            text = Text().add(_ONE_OFF.draw(self._chance), self._chance)
            yield moment, text.asked(_ANSWER.draw(self._chance), self._chance)
        for moment in self._moments(self._mix.bursts):
            shared = Text().add(_BURST.draw(self._chance), self._chance)
            for _ in range(self._mix.burst_size):
                text = Text(shared).add(_QUESTION.draw(self._chance), self._chance)
                yield moment, text.asked(_ANSWER.draw(self._chance), self._chance)

    def after(self, ended: Request, now: float) -> tuple[float, Request] | None:
        """What the user asks next, having read the answer and thought about it."""
        if ended.user is None:
            return None
        return now + self._users[ended.user].chance.expovariate(1 / self._mix.think), self._question(ended.user)

    def _moments(self, rate: float) -> Iterator[float]:
        if rate > 0:
            for moment in poisson(rate * self._replicas, self._chance):
                if moment > self._seconds:
                    return
                yield moment

    def _question(self, number: int) -> Request:
        """The next of this user: one more in their conversation, or the first of a new one."""
        user, chance = self._users[number], self._users[number].chance
        question, answer = _QUESTION.draw(chance), _ANSWER.draw(chance)
        text = user.text
        if text is None or not user.turns or text.tokens + question + answer > _LONGEST:
            text = user.text = Text(chance.choices(self._systems, cum_weights=self._popularity)[0])
            user.turns = 1
            while chance.random() > 1 / self._mix.turns:
                user.turns += 1
        user.turns -= 1
        return text.add(question, chance).asked(answer, chance, number)


class _User:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.text: Text | None = None
        """Of the conversation that is under way."""
        self.turns = 0
        """That it will still have."""
