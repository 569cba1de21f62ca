"""The loads that servers are put under. Each takes a fresh session with one server and returns what it measured."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from paddock.lab.client import CHAT, COMPLETIONS, Address, Answer, get, post, repeat, stream
from paddock.lab.serving.keys import OTHER_KEY
from paddock.lab.serving.report import Better, Measure
from paddock.lab.words import Message, user, words

_SHORT_QUESTION = 12
_SHORT_PROMPT = 10
_RUNNING = 3
_MANY = 64
_FLOOD = 50


@dataclass(frozen=True)
class Settings:
    model_name: str = "default"
    temperature: float = 0.0
    ignore_eos: bool = True
    conversations: int = 100
    scale: float = 1.0

    def scaled(self, number: int, least: int = 2) -> int:
        return max(least, round(number * self.scale))


@dataclass
class Session:
    """One server during one scenario of one round."""

    address: Address
    settings: Settings
    seed: str
    """Of the scenario and round: every server gets the same text but for a tag that no server has seen before."""
    answers: list[Answer] = field(default_factory=list)
    short: int = 0
    """Answers that ended before they had all the tokens asked for, which makes rates hard to compare."""

    def __post_init__(self) -> None:
        self._tags = random.Random()
        self._same = random.Random(self.seed)

    def words(self, count: int) -> str:
        """That many words that begin as no text before did, so that no cache knows them."""
        return words(count, tag=self._tags, rest=self._same)

    def story(self) -> list[Message]:
        return [user(f"{self.words(_SHORT_QUESTION)}. Tell me a long story with these words in it.")]

    def body(self, tokens: int, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.settings.model_name,
            "max_tokens": tokens,
            "temperature": self.settings.temperature,
            **more,
        }
        return body | {"ignore_eos": True} if self.settings.ignore_eos else body

    async def ask(
        self, messages: list[Message], tokens: int, on_event: Callable[[int], object] | None = None
    ) -> Answer:
        return self._noted(await stream(self.address, self.body(tokens, messages=messages), on_event), tokens)

    async def complete(self, prompt: str, tokens: int) -> Answer:
        """The same without a chat template."""
        body = self.body(tokens, prompt=prompt)
        return self._noted(await stream(self.address, body, path=COMPLETIONS), tokens)

    def _noted(self, answer: Answer, tokens: int) -> Answer:
        self.answers.append(answer)
        self.short += answer.tokens < tokens
        return answer

    async def ask_all(self, prompts: Iterable[list[Message]], tokens: int) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.ask(messages, tokens)) for messages in prompts]
        return [task.result() for task in tasks]


Scenario = Callable[[Session], Awaitable[list[Measure]]]


async def wake(session: Session) -> Answer:
    """Unmeasured: a server may have put its model away while the others had their turn."""
    return await session.ask([user(session.words(_SHORT_QUESTION))], 2)


async def streams(session: Session, count: int) -> list[Measure]:
    answers = await session.ask_all([session.story() for _ in range(count)], session.settings.scaled(128))
    tokens = sum(answer.tokens for answer in answers)
    generating = _last_token(answers) - min(answer.times[0] for answer in answers)
    return [
        Measure("tokens per second", "1/s", Better.HIGHER, tokens / _wall(answers)),
        Measure("... from the first token on", "1/s", Better.HIGHER, tokens / max(generating, 1e-6)),
    ]


async def burst(session: Session) -> list[Measure]:
    """Eight at the same moment with one long system text, new to the server; then eight more with the same."""
    system: Message = {"role": "system", "content": session.words(session.settings.scaled(1009))}
    measures = []
    for state in ("cold", "warm"):
        prompts = [[system, user(session.words(_SHORT_QUESTION))] for _ in range(8)]
        answers = await session.ask_all(prompts, session.settings.scaled(16))
        measures += [
            _seconds(f"{state}: first token, median", statistics.median(answer.first_token for answer in answers)),
            _seconds(f"{state}: all done", _wall(answers)),
            _cached(f"{state}: prompt tokens cached", answers),
        ]
    return measures


async def stall(session: Session) -> list[Measure]:
    """Two long new prompts arrive while three streams are running: how long do those stand still?"""
    needed, length = session.settings.scaled(20), session.settings.scaled(300)
    late_prompts = [[user(session.words(session.settings.scaled(1370)))] for _ in range(2)]
    under_way = [asyncio.Event() for _ in range(_RUNNING)]

    async def stream(event: asyncio.Event) -> Answer:
        try:
            return await session.ask(session.story(), length, lambda count: event.set() if count >= needed else None)
        finally:
            event.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream(event)) for event in under_way]
        for event in under_way:
            await event.wait()
        begun = time.perf_counter()
        late = await session.ask_all(late_prompts, session.settings.scaled(8))
    gap = max(longest_gap(task.result().times, begun, _done(late)) for task in tasks)
    return [
        _seconds("longest gap in a running stream", gap),
        _seconds("late prompts: first token, mean", statistics.mean(answer.first_token for answer in late)),
        _seconds("late prompts: all done", _wall(late)),
    ]


async def turns(session: Session, at_once: int) -> list[Measure]:
    """Eight conversations of three turns, taken in turn, some at once."""
    histories = [[user(session.words(session.settings.scaled(220)))] for _ in range(8)]
    locks = [asyncio.Lock() for _ in histories]
    jobs = iter([(turn, number) for turn in range(3) for number in range(len(histories))])
    later: list[Answer] = []

    async def take_jobs() -> None:
        for turn, number in jobs:
            async with locks[number]:
                answer = await _continue(session, histories[number], session.settings.scaled(32))
                if turn:
                    later.append(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(take_jobs())
    return _return_visits("turns 2 and 3", later)


async def revisit(session: Session) -> list[Measure]:
    """Many conversations, one after another; then each goes on once, in the same order."""
    count = session.settings.scaled(session.settings.conversations)
    histories = [[user(session.words(session.settings.scaled(170)))] for _ in range(count)]
    tokens = session.settings.scaled(8)
    first = [await _continue(session, history, tokens) for history in histories]
    second = [await _continue(session, history, tokens) for history in histories]
    first_token = statistics.median(answer.first_token for answer in first)
    return [_seconds("first visit: first token, median", first_token), *_return_visits("revisit", second)]


async def neighbours(session: Session, neighbour: Session) -> list[Measure]:
    """Two servers of one kind on one machine, a stream each, against one of them alone."""
    tokens = session.settings.scaled(128)
    alone = _rate(await session.ask(session.story(), tokens))
    both = await asyncio.gather(session.ask(session.story(), tokens), neighbour.ask(neighbour.story(), tokens))
    together = sum(_rate(answer) for answer in both)
    return [
        Measure("two servers together", "1/s", Better.HIGHER, together),
        Measure("two together / one alone", "x", Better.HIGHER, together / alone),
    ]


async def short(session: Session) -> list[Measure]:
    """Prompts of ten tokens, one after another, on a server that does nothing else."""
    count = session.settings.scaled(60)
    answers = [await session.complete(session.words(_SHORT_PROMPT), 2) for _ in range(count)]
    return [_seconds("first token of ten tokens, median", statistics.median(answer.first_token for answer in answers))]


async def tokenize(session: Session) -> list[Measure]:
    """A sentence is tokenised again and again, over eight connections that stay open."""
    body = {"model": session.settings.model_name, "content": session.words(20)}
    await wake(session)
    rate = await repeat(session.address, "/tokenize", body, connections=8, times=session.settings.scaled(6000))
    return [Measure("/tokenize", "1/s", Better.HIGHER, rate)]


async def open64(session: Session) -> list[Measure]:
    """Sixty-four streams (start the server with as many places), against as many answers in one body."""
    tokens = session.settings.scaled(64)
    answers = await session.ask_all([session.story()] * _MANY, tokens)
    streamed = _MANY * tokens / (_last_token(answers) - max(answer.times[0] for answer in answers))
    body = session.body(tokens, messages=session.story(), n=_MANY)
    timings = (await post(session.address, CHAT, body))["timings"]
    whole = _MANY * tokens / (timings["predicted_ms"] / 1000)
    return [
        Measure("64 streams", "1/s", Better.HIGHER, streamed),
        Measure("64 answers in one body", "1/s", Better.HIGHER, whole),
        Measure("streams / one body", "x", Better.HIGHER, streamed / whole),
    ]


async def swap(session: Session) -> list[Measure]:
    """A model that is not loaded is asked for (start the servers with a directory of models)."""
    name, waits = session.settings.model_name, []
    for _ in range(session.settings.scaled(5)):
        await post(session.address, "/models/unload", {"model": name})
        while await _state(session.address, name) != "unloaded":  # noqa: ASYNC110 (another process's)
            await asyncio.sleep(0.05)
        waits.append((await session.ask([user(session.words(_SHORT_QUESTION))], 2)).first_token)
    return [_seconds("first token of an unloaded model, median", statistics.median(waits))]


async def fairness(session: Session) -> list[Measure]:
    """One key sends fifty long requests at once; another a short one each second, alone and then beside the flood."""
    count, tokens = session.settings.scaled(20), session.settings.scaled(256)
    other = Session(replace(session.address, api_key=OTHER_KEY), session.settings, session.seed, session.answers)
    alone = await _each_second(other, count)
    under_way = asyncio.Event()
    prompts = [[user(session.words(session.settings.scaled(1000)))] for _ in range(session.settings.scaled(_FLOOD))]
    flood = [asyncio.create_task(session.ask(prompt, tokens, lambda _: under_way.set())) for prompt in prompts]
    try:
        await under_way.wait()
        beside = await _each_second(other, count)
        answered = sum(task.done() for task in flood)
    finally:
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    medians = [statistics.median(answer.first_token for answer in answers) for answers in (alone, beside)]
    return [
        _seconds("alone: first token, median", medians[0]),
        _seconds("beside a flood: first token, median", medians[1]),
        _seconds("beside a flood: first token, longest", max(answer.first_token for answer in beside)),
        Measure("beside a flood / alone", "x", Better.LOWER, medians[1] / medians[0]),
        Measure("of the flood answered meanwhile", "", Better.NEITHER, answered),
    ]


async def _each_second(session: Session, count: int) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(count):
            tasks.append(group.create_task(session.ask([user(session.words(_SHORT_QUESTION))], 8)))
            await asyncio.sleep(1)
    return [task.result() for task in tasks]


async def _state(address: Address, name: str) -> str:
    cards = (await get(address, "/models"))["data"]
    return next(str(card["status"]["value"]) for card in cards if card["id"] == name)


SCENARIOS: dict[str, Scenario] = {
    "streams1": partial(streams, count=1),
    "streams4": partial(streams, count=4),
    "streams8": partial(streams, count=8),
    "streams32": partial(streams, count=32),
    "burst": burst,
    "stall": stall,
    "turns4": partial(turns, at_once=4),
    "revisit": revisit,
    "short": short,
    "tokenize": tokenize,
    "open64": open64,
    "swap": swap,
    "fairness": fairness,
}


def longest_gap(times: list[float], begun: float, ended: float) -> float:
    """The longest time between two events of a stream that was, in part at least, between these moments."""
    return max((after - before for before, after in pairwise(times) if after > begun and before < ended), default=0.0)


async def _continue(session: Session, history: list[Message], tokens: int) -> Answer:
    """Ask, and leave the answer and the next question in the history."""
    answer = await session.ask(history, tokens)
    history += [{"role": "assistant", "content": answer.text}, user(session.words(_SHORT_QUESTION))]
    return answer


def _done(answers: Iterable[Answer]) -> float:
    return max(answer.done for answer in answers)


def _last_token(answers: Iterable[Answer]) -> float:
    return max(answer.times[-1] for answer in answers)


def _wall(answers: list[Answer]) -> float:
    return _done(answers) - min(answer.sent for answer in answers)


def _rate(answer: Answer) -> float:
    return answer.tokens / _wall([answer])


def _seconds(name: str, value: float) -> Measure:
    return Measure(name, "s", Better.LOWER, value)


def _cached(name: str, answers: list[Answer]) -> Measure:
    prompt = sum(answer.prompt_tokens or 0 for answer in answers)
    cached = sum(answer.cached_tokens or 0 for answer in answers)
    return Measure(name, "%", Better.NEITHER, 100 * cached / max(prompt, 1))


def _return_visits(name: str, answers: list[Answer]) -> list[Measure]:
    first_token = statistics.median(answer.first_token for answer in answers)
    return [_seconds(f"{name}: first token, median", first_token), _cached(f"{name}: prompt tokens cached", answers)]
