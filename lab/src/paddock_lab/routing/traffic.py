"""The simulated requests. All random values come from the seed; those of a user do not depend on other events."""

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
"""The most tokens of a conversation."""


@dataclass(frozen=True)
class Mix:
    """Traffic per replica: twice as many replicas get twice as many requests."""

    users: float = 10
    """Users with one conversation after another."""
    think: float = 20
    """Mean seconds between an answer and the next question."""
    turns: float = 6
    """Mean turns of a conversation."""
    prompts: float = 2
    """System prompts. The most popular is used twice as often as the second, three times as often as the third."""
    one_offs: float = 0.05
    """Requests per second that share nothing with others."""
    bursts: float = 0.002
    """Bursts per second: many requests about the same new text at the same time."""
    burst_size: int = 12


class Text:
    """The blocks of a conversation so far. Texts with the same beginning have the same blocks."""

    def __init__(self, before: Text | None = None) -> None:
        self.tokens: int = before.tokens if before else 0
        self._blocks = list(before.whole) if before else []

    @property
    def whole(self) -> tuple[int, ...]:
        return tuple(self._blocks)

    def add(self, tokens: int, rng: random.Random) -> Text:
        self.tokens += tokens
        while len(self._blocks) < self.tokens // BLOCK_TOKENS:
            self._blocks.append(rng.getrandbits(64))
        return self

    def request(self, answer: int, rng: random.Random, user: int | None = None) -> Request:
        """A request with this text as its prompt. The answer is then added to the text."""
        chain, tokens = self.whole, self.tokens
        if tokens % BLOCK_TOKENS:
            chain += (rng.getrandbits(64),)
        return Request(chain, tokens, answer, self.add(answer, rng).whole, user)


class Traffic:
    def __init__(self, mix: Mix, replicas: int, seconds: float, seed: int) -> None:
        self._mix, self._replicas, self._seconds = mix, replicas, seconds
        self._rng = random.Random(f"{seed} others")
        prompts = max(1, round(mix.prompts * replicas))
        self._systems = [Text().add(_SYSTEM.draw(self._rng), self._rng) for _ in range(prompts)]
        self._popularity = list(accumulate(1 / rank for rank in range(1, prompts + 1)))
        self._users = [_User(random.Random(f"{seed} user {number}")) for number in range(round(mix.users * replicas))]

    def independent_requests(self) -> Iterator[tuple[float, Request]]:
        """Times and requests that do not depend on answers: first turns, single requests and bursts."""
        for number, user in enumerate(self._users):
            yield user.rng.uniform(0, self._mix.think), self._question(number)
        for time in self._times(self._mix.one_offs):
            text = Text().add(_ONE_OFF.draw(self._rng), self._rng)
            yield time, text.request(_ANSWER.draw(self._rng), self._rng)
        for time in self._times(self._mix.bursts):
            shared = Text().add(_BURST.draw(self._rng), self._rng)
            for _ in range(self._mix.burst_size):
                text = Text(shared).add(_QUESTION.draw(self._rng), self._rng)
                yield time, text.request(_ANSWER.draw(self._rng), self._rng)

    def after(self, ended: Request, now: float) -> tuple[float, Request] | None:
        """The next request of the user after the answer, with its time."""
        if ended.user is None:
            return None
        return now + self._users[ended.user].rng.expovariate(1 / self._mix.think), self._question(ended.user)

    def _times(self, rate: float) -> Iterator[float]:
        if rate > 0:
            for time in poisson(rate * self._replicas, self._rng):
                if time > self._seconds:
                    return
                yield time

    def _question(self, number: int) -> Request:
        """The user's next turn in the conversation, or the first turn of a new one."""
        user, rng = self._users[number], self._users[number].rng
        question, answer = _QUESTION.draw(rng), _ANSWER.draw(rng)
        text = user.text
        if text is None or not user.turns or text.tokens + question + answer > _LONGEST:
            text = user.text = Text(rng.choices(self._systems, cum_weights=self._popularity)[0])
            user.turns = 1
            while rng.random() > 1 / self._mix.turns:
                user.turns += 1
        user.turns -= 1
        return text.add(question, rng).request(answer, rng, number)


class _User:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.text: Text | None = None
        """The text of the running conversation."""
        self.turns = 0
        """The remaining turns of the conversation."""
