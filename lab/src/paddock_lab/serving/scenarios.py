"""What `paddock bench` has no words for. Each takes a fresh session with one server and returns what it measured."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from paddock_lab.client import CHAT, Address, Answer, get, post, repeat, stream
from paddock_lab.serving.keys import OTHER_KEY
from paddock_lab.serving.report import Better, Measure
from paddock_lab.words import Message, user, words

_SHORT_QUESTION = 12
_MANY = 64
_FLOOD = 50


@dataclass(frozen=True)
class Settings:
    model_name: str = "default"
    temperature: float = 0.0
    ignore_eos: bool = True
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
    """A model that is not loaded is asked for (start the servers with a directory of models): the moment it has left,
    and a while later, as after it was idle.
    """
    name, measures = session.settings.model_name, []
    for when, pause in (("the moment it has left", 0.0), ("a while later", 2.0)):
        waits = []
        for _ in range(session.settings.scaled(5)):
            await post(session.address, "/models/unload", {"model": name})
            while await _state(session.address, name) != "unloaded":  # noqa: ASYNC110 (another process's)
                await asyncio.sleep(0.05)
            await asyncio.sleep(pause)
            waits.append((await session.ask([user(session.words(_SHORT_QUESTION))], 2)).first_token)
        measures.append(_seconds(f"first token of an unloaded model, {when}, median", statistics.median(waits)))
    return measures


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


SCENARIOS: dict[str, Scenario] = {"tokenize": tokenize, "open64": open64, "swap": swap, "fairness": fairness}


def _last_token(answers: Iterable[Answer]) -> float:
    return max(answer.times[-1] for answer in answers)


def _seconds(name: str, value: float) -> Measure:
    return Measure(name, "s", Better.LOWER, value)
