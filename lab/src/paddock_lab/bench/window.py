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
from paddock_lab.client import Answer, ChatFailed
from paddock_lab.targets import Target
from paddock_lab.words import Message, assistant

Kind = Literal["warm-up", "first", "later", "long"]
"""A request that is not counted; the first turn of a conversation; a later turn; a long prompt as interference."""


@dataclass(frozen=True)
class RequestResult:
    """One request. Times are in seconds; None is unknown."""

    kind: Kind
    sent: float
    done: float
    asked: int
    """`max_tokens` of the request."""
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: int | None = None
    """Guessed tokens, as the server reports them."""
    accepted: int | None = None
    """Those of them that were accepted."""
    times: Sequence[float] = ()
    """When tokens arrived, in seconds since the request was sent."""
    left: bool = False
    """The client disconnected early, as planned."""
    error: str = ""
    """The kind of failure; empty without one."""
    message: str = ""

    @property
    def first_token(self) -> float | None:
        return self.times[0] if self.times else None

    @property
    def between_tokens(self) -> float | None:
        """Mean time between two tokens."""
        if len(self.times) < 2 or self.tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    @property
    def longest_stall(self) -> float | None:
        return max((after - before for before, after in pairwise(self.times)), default=None)


@dataclass
class _Dialogue:
    conversation: Conversation
    history: list[Message]
    number: int = 0
    over: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, conversation: Conversation) -> _Dialogue:
        return cls(conversation, list(conversation.opening), over=not conversation.turns)


class Window:
    """`record` is called with the result of each request."""

    def __init__(self, point: Point, target: Target, seconds: float, record: Callable[[RequestResult], None]) -> None:
        self._point, self._target, self._seconds, self._record = point, target, seconds, record
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
            # Made before the first request is sent, so that no request waits for its text.
            conversations = iter(list(_limited(conversations, requests)))
        if self._point.rate is not None:
            await self._open_loop(conversations, arrivals)
        elif load.interleaved:
            await self._interleaved([_Dialogue.of(conversation) for conversation in conversations])
        else:
            await self._closed_loop(conversations)

    async def _closed_loop(self, conversations: Iterator[Conversation]) -> None:
        duration = self._point.load.duration
        ends = None if duration is None else time.perf_counter() + duration

        async def client() -> None:
            for conversation in conversations:
                await self._all_turns(_Dialogue.of(conversation))
                if ends is not None and time.perf_counter() >= ends:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(self._point.clients or 1):
                group.create_task(client())

    async def _interleaved(self, dialogues: Sequence[_Dialogue]) -> None:
        jobs = iter(
            [
                dialogue
                for number in range(self._point.load.turns)
                for dialogue in dialogues
                if number < _turns(dialogue)
            ]
        )

        async def client() -> None:
            for dialogue in jobs:
                async with dialogue.lock:
                    await self._next_turn(dialogue)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._point.clients or 1):
                group.create_task(client())

    async def _open_loop(self, conversations: Iterator[Conversation], arrivals: Iterator[float]) -> None:
        begun, duration = time.perf_counter(), self._point.load.duration
        async with asyncio.TaskGroup() as group:
            for conversation, after in zip(conversations, arrivals, strict=False):
                if duration is not None and after > duration:
                    return
                await asyncio.sleep(begun + after - time.perf_counter())
                group.create_task(self._all_turns(_Dialogue.of(conversation)))

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

    async def _all_turns(self, dialogue: _Dialogue) -> None:
        while not dialogue.over:
            await self._next_turn(dialogue)

    async def _next_turn(self, dialogue: _Dialogue) -> None:
        """Send the next turn. The conversation ends early if its client disconnects or a request fails."""
        if dialogue.over:
            return
        turn = dialogue.conversation.turns[dialogue.number]
        answer = await self._ask("later" if dialogue.number else "first", dialogue.history, turn)
        dialogue.number += 1
        if answer is None or turn.leave_after is not None or dialogue.number == _turns(dialogue):
            dialogue.over = True
        else:
            dialogue.history += [turn.message, assistant(answer.text)]

    async def _ask(self, kind: Kind, before: list[Message], turn: Turn) -> Answer | None:
        sent, on_event = time.perf_counter(), self._progress_callback(turn) if kind in ("first", "later") else None
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._target.ask(
                    [*before, turn.message],
                    turn.output,
                    on_event,
                    turn.leave_after,
                    more=self._point.load.body if kind in ("first", "later") else {},
                )
        except (ChatFailed, OSError) as failure:
            self._record(_failed(kind, sent, turn.output, failure))
            return None
        finally:
            if on_event:
                on_event(turn.output)
        drafted, accepted = answer.drafted_tokens or (None, None)
        left = turn.leave_after is not None and answer.finish_reason is None
        self._record(
            RequestResult(
                kind,
                answer.sent,
                answer.done,
                turn.output,
                len(answer.times) if left else answer.tokens,
                answer.prompt_tokens,
                answer.cached_tokens,
                drafted,
                accepted,
                [round(each - answer.sent, 6) for each in answer.times],
                left,
            )
        )
        return answer

    def _progress_callback(self, turn: Turn) -> Callable[[int], None] | None:
        """Starts the interference when enough streams have enough tokens, or have ended before."""
        if not self._point.load.interference or not self._streams_wanted:
            return None
        needed, is_counted = min(self._point.load.interference_after, turn.output), False

        def on_event(tokens: int) -> None:
            nonlocal is_counted
            if tokens < needed or is_counted:
                return
            is_counted = True
            self._streams_wanted -= 1
            if self._streams_wanted == 0:
                self._under_way.set()

        return on_event


def _limited(conversations: Iterator[Conversation], requests: int) -> Iterator[Conversation]:
    """Conversations with `requests` turns in total; the last one may be cut."""
    for conversation in conversations:
        turns = conversation.turns[:requests]
        yield Conversation(conversation.opening, turns)
        requests -= len(turns)
        if not requests:
            return


def _turns(dialogue: _Dialogue) -> int:
    return len(dialogue.conversation.turns)


def _failed(kind: Kind, sent: float, asked: int, failure: Exception) -> RequestResult:
    if isinstance(failure, ChatFailed):
        name = f"HTTP {failure.status}" if failure.status else "broken off"
    else:
        name = "timeout" if isinstance(failure, TimeoutError) else type(failure).__name__
    return RequestResult(kind, sent, time.perf_counter(), asked, error=name, message=str(failure))
