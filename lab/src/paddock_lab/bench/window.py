"""One load on one server, from the first request to the last answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Literal

from paddock_lab.bench.conversations import Conversation, Turn
from paddock_lab.bench.loads import Point
from paddock_lab.bench.targets import Target
from paddock_lab.client import Answer, ChatFailed
from paddock_lab.words import Message, assistant

Kind = Literal["warm-up", "first", "later", "long"]
"""A request that does not count; the first turn of a conversation; a later one; a long prompt that interferes."""


@dataclass(frozen=True)
class Heard:
    """One request, in seconds. None stands for what is not known."""

    kind: Kind
    sent: float
    done: float
    asked: int
    """Tokens of an answer."""
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    times: Sequence[float] = ()
    """When tokens came, since the request was sent."""
    left: bool = False
    """The client went away before the end, as it was meant to."""
    error: str = ""
    """The kind of failure; empty where there was none."""
    message: str = ""

    @property
    def first_token(self) -> float | None:
        return self.times[0] if self.times else None

    @property
    def between_tokens(self) -> float | None:
        """Mean time from one token to the next."""
        if len(self.times) < 2 or self.tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    @property
    def longest_stall(self) -> float | None:
        return max((after - before for before, after in pairwise(self.times)), default=None)


@dataclass
class _Talk:
    conversation: Conversation
    history: list[Message]
    number: int = 0
    over: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, conversation: Conversation) -> _Talk:
        return cls(conversation, list(conversation.opening), over=not conversation.turns)


class Window:
    """`note` hears of every request as it ends."""

    def __init__(self, point: Point, target: Target, seconds: float, note: Callable[[Heard], None]) -> None:
        self._point, self._target, self._seconds, self._note = point, target, seconds, note
        self._under_way = asyncio.Event()
        self._streams_wanted = point.clients or 1

    async def warm_up(self, conversations: Iterable[Conversation]) -> None:
        for conversation in conversations:
            await self._ask("warm-up", list(conversation.opening), conversation.turns[0])

    async def run(
        self, conversations: Iterator[Conversation], long_prompts: Iterator[Conversation], arrivals: Iterator[float]
    ) -> None:
        interference = asyncio.create_task(self._interfere(long_prompts)) if self._point.load.interference else None
        try:
            await self._load(conversations, arrivals)
            if interference and self._under_way.is_set() and self._point.load.interference_every is None:
                await interference
        finally:
            if interference:
                interference.cancel()
                with suppress(asyncio.CancelledError):
                    await interference

    async def _load(self, conversations: Iterator[Conversation], arrivals: Iterator[float]) -> None:
        load, requests = self._point.load, self._point.requests
        if requests is not None:
            # Written before the first is sent, so that nobody waits for our words.
            conversations = iter(list(_limited(conversations, requests)))
        if self._point.rate is not None:
            await self._as_they_come(conversations, arrivals)
        elif load.interleaved:
            await self._in_turn([_Talk.of(conversation) for conversation in conversations])
        else:
            await self._one_after_another(conversations)

    async def _one_after_another(self, conversations: Iterator[Conversation]) -> None:
        duration = self._point.load.duration
        ends = None if duration is None else time.perf_counter() + duration

        async def client() -> None:
            for conversation in conversations:
                await self._whole(_Talk.of(conversation))
                if ends is not None and time.perf_counter() >= ends:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(self._point.clients or 1):
                group.create_task(client())

    async def _in_turn(self, talks: Sequence[_Talk]) -> None:
        jobs = iter([talk for number in range(self._point.load.turns) for talk in talks if number < _turns(talk)])

        async def client() -> None:
            for talk in jobs:
                async with talk.lock:
                    await self._go_on(talk)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._point.clients or 1):
                group.create_task(client())

    async def _as_they_come(self, conversations: Iterator[Conversation], arrivals: Iterator[float]) -> None:
        begun, duration = time.perf_counter(), self._point.load.duration
        async with asyncio.TaskGroup() as group:
            for conversation, after in zip(conversations, arrivals, strict=False):
                if duration is not None and after > duration:
                    return
                await asyncio.sleep(begun + after - time.perf_counter())
                group.create_task(self._whole(_Talk.of(conversation)))

    async def _interfere(self, prompts: Iterator[Conversation]) -> None:
        load = self._point.load
        await self._under_way.wait()
        while True:
            async with asyncio.TaskGroup() as group:
                for prompt in islice(prompts, load.interference_at_once):
                    group.create_task(self._ask("long", [], prompt.turns[0]))
            if load.interference_every is None:
                return
            await asyncio.sleep(load.interference_every)

    async def _whole(self, talk: _Talk) -> None:
        while not talk.over:
            await self._go_on(talk)

    async def _go_on(self, talk: _Talk) -> None:
        """The next turn. A conversation is over when its client has left, or an answer has failed."""
        if talk.over:
            return
        turn = talk.conversation.turns[talk.number]
        answer = await self._ask("later" if talk.number else "first", talk.history, turn)
        talk.number += 1
        if answer is None or turn.leave_after is not None or talk.number == _turns(talk):
            talk.over = True
        else:
            talk.history += [turn.said, assistant(answer.text)]

    async def _ask(self, kind: Kind, before: list[Message], turn: Turn) -> Answer | None:
        sent, heard = time.perf_counter(), self._listener(turn) if kind in ("first", "later") else None
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._target.ask([*before, turn.said], turn.output, heard, turn.leave_after)
        except (ChatFailed, OSError) as failure:
            self._note(_failed(kind, sent, turn.output, failure))
            return None
        finally:
            if heard:
                heard(turn.output)
        left = turn.leave_after is not None and answer.finish_reason is None
        self._note(
            Heard(
                kind,
                answer.sent,
                answer.done,
                turn.output,
                len(answer.times) if left else answer.tokens,
                answer.prompt_tokens,
                answer.cached_tokens,
                [round(each - answer.sent, 6) for each in answer.times],
                left,
            )
        )
        return answer

    def _listener(self, turn: Turn) -> Callable[[int], None] | None:
        """Tells when as many streams as are to be disturbed have got so far, or have ended before."""
        if not self._point.load.interference or not self._streams_wanted:
            return None
        needed, told = min(self._point.load.interference_after, turn.output), False

        def heard(tokens: int) -> None:
            nonlocal told
            if tokens < needed or told:
                return
            told = True
            self._streams_wanted -= 1
            if self._streams_wanted == 0:
                self._under_way.set()

        return heard


def _limited(conversations: Iterator[Conversation], requests: int) -> Iterator[Conversation]:
    """So many turns of them in all, whatever their lengths; the last conversation may be cut."""
    for conversation in conversations:
        turns = conversation.turns[:requests]
        yield Conversation(conversation.opening, turns)
        requests -= len(turns)
        if not requests:
            return


def _turns(talk: _Talk) -> int:
    return len(talk.conversation.turns)


def _failed(kind: Kind, sent: float, asked: int, failure: Exception) -> Heard:
    if isinstance(failure, ChatFailed):
        name = f"HTTP {failure.status}" if failure.status else "broken off"
    else:
        name = "timeout" if isinstance(failure, TimeoutError) else type(failure).__name__
    return Heard(kind, sent, time.perf_counter(), asked, error=name, message=str(failure))
