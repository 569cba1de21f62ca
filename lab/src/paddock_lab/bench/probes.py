"""Measurements that no load describes: /tokenize, many answers in one body, unloaded models, a flood from one key."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paddock_lab.client import CHAT, Answer, get, post, repeat
from paddock_lab.report import Cell, Table
from paddock_lab.report.findings import shown
from paddock_lab.statistics import median, ratio_of_medians
from paddock_lab.targets import Target
from paddock_lab.words import Message, user, words

_SHORT_PROMPT = 12
_STREAMS = 64
_LEAST_STREAMED = 16
"""Of fewer tokens, all may be parts of characters that are sent with the next one."""
_FLOOD = 50
_NO_GUESSES = {"speculative.n_max": 0}
"""With guesses a short answer may come in one step, which has no speed."""


@dataclass(frozen=True)
class Measured:
    """One value of a probe."""

    name: str
    value: float
    better: Literal["higher", "lower"] | None = "lower"
    """None: the value only explains the others."""


@dataclass(frozen=True)
class Result:
    round: int
    probe: str
    server: str
    measured: Measured


@dataclass
class Session:
    """One server during one probe of one round."""

    target: Target
    scale: float
    seed: str
    """Of the probe and round: every server gets the same texts, except for their first words."""
    other_key: str = ""

    def __post_init__(self) -> None:
        self._tags, self._rest = random.Random(), random.Random(self.seed)

    def scaled(self, number: int) -> int:
        return max(2, round(number * self.scale))

    def words(self, count: int) -> str:
        """A text whose first words are new to the server, so that no cache has it."""
        return words(count, tag=self._tags, rest=self._rest)

    def prompt(self) -> list[Message]:
        return [user(f"{self.words(_SHORT_PROMPT)}. Tell me a long story with these words in it.")]

    async def ask_all(self, prompts: Iterable[list[Message]], tokens: int) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.target.ask(prompt, tokens, more=_NO_GUESSES)) for prompt in prompts]
        return [task.result() for task in tasks]


async def tokenize(session: Session) -> list[Measured]:
    """Eight open connections send the same sentence to /tokenize again and again."""
    body = {"model": session.target.model, "content": session.words(20)}
    rate = await repeat(session.target.server.address, "/tokenize", body, connections=8, times=session.scaled(6000))
    return [Measured("/tokenize (requests/s)", rate, "higher")]


async def open64(session: Session) -> list[Measured]:
    """64 streams, compared with 64 answers in one body. Start the server with 64 slots."""
    tokens = max(session.scaled(64), _LEAST_STREAMED)
    answers = await session.ask_all([session.prompt()] * _STREAMS, tokens)
    times = [answer.times for answer in answers if answer.times]
    seconds = max(each[-1] for each in times) - max(each[0] for each in times)
    body = {**session.target.body(session.prompt(), tokens), **_NO_GUESSES, "n": _STREAMS}
    timings = (await post(session.target.server.address, CHAT, body))["timings"]
    streamed = Measured("64 streams (tokens/s)", len(times) * tokens / seconds, "higher")
    whole = Measured(
        "64 answers in one body (tokens/s)", _STREAMS * tokens / (timings["predicted_ms"] / 1000), "higher"
    )
    return [
        streamed,
        whole,
        Measured("streams / one body", streamed.value / whole.value, "higher"),
    ]


async def swap(session: Session) -> list[Measured]:
    """Requests for a model that is unloaded: at once after it is unloaded, and two seconds later. Start the server with
    a directory of models.
    """
    target, measured = session.target, []
    for when, pause in (("at once", 0.0), ("2 s later", 2.0)):
        waits = []
        for _ in range(session.scaled(5)):
            await post(target.server.address, "/models/unload", {"model": target.model})
            while await _state(target) != "unloaded":  # noqa: ASYNC110 (the state of another process)
                await asyncio.sleep(0.05)
            await asyncio.sleep(pause)
            waits.append((await target.ask([user(session.words(_SHORT_PROMPT))], 2)).first_token)
        measured.append(Measured(f"first token after unloading, {when} (s)", statistics.median(waits)))
    return measured


async def fairness(session: Session) -> list[Measured]:
    """One key sends fifty long requests at once. Another key sends a short one each second, first without them."""
    count, tokens = session.scaled(20), session.scaled(256)
    server = session.target.server
    address = replace(server.address, api_key=session.other_key)
    other = replace(session, target=replace(session.target, server=replace(server, address=address)))
    alone = await _each_second(other, count)
    is_running = asyncio.Event()
    prompts = [[user(session.words(session.scaled(1000)))] for _ in range(session.scaled(_FLOOD))]
    flood = [asyncio.create_task(session.target.ask(each, tokens, lambda _: is_running.set())) for each in prompts]
    try:
        await is_running.wait()
        beside = await _each_second(other, count)
        answered = sum(task.done() for task in flood)
    finally:
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    medians = [statistics.median(answer.first_token for answer in answers) for answers in (alone, beside)]
    return [
        Measured("alone: first token, median (s)", medians[0]),
        Measured("beside a flood: first token, median (s)", medians[1]),
        Measured("beside a flood: first token, longest (s)", max(answer.first_token for answer in beside)),
        Measured("beside a flood / alone", medians[1] / medians[0]),
        Measured("requests of the flood answered meanwhile", answered, None),
    ]


PROBES: dict[str, Callable[[Session], Awaitable[list[Measured]]]] = {
    "tokenize": tokenize,
    "open64": open64,
    "swap": swap,
    "fairness": fairness,
}


def probe_table(results: Sequence[Result], servers: Sequence[str]) -> Table:
    """Medians of all servers, and ratios that are above 1 where the first server is better."""
    first, *others = servers
    rows: list[tuple[Cell, ...]] = []
    for probe, measured in {(each.probe, each.measured.name): each.measured for each in results}.items():
        values = {
            server: [
                each.measured.value
                for each in results
                if (each.probe, each.measured.name, each.server) == (*probe, server)
            ]
            for server in servers
        }
        medians = (median(found) if (found := values[server]) else None for server in servers)
        ratios = (_ratio(measured, values[first], values[other]) for other in others)
        rows.append((*probe, *medians, *ratios))
    columns = ("probe", "measure", *servers, *(f"times as good as {other}" for other in others))
    note = f"Medians over the rounds. A ratio above 1 means that {first} is better, also where less is better."
    return Table("Probes", columns, rows, note)


def probe_summary(table: Table) -> list[str]:
    return [
        f"{probe}: {measure}: "
        + ", ".join(f"{column} {shown(cell)}" for column, cell in zip(table.columns[2:], cells, strict=True))
        for probe, measure, *cells in table.rows
    ]


def _ratio(measured: Measured, first: Sequence[float], other: Sequence[float]) -> Cell:
    if measured.better is None or not first or not other or min(*first, *other) <= 0:
        return None
    return ratio_of_medians(first, other) if measured.better == "higher" else ratio_of_medians(other, first)


async def _each_second(session: Session, count: int) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(count):
            tasks.append(group.create_task(session.target.ask([user(session.words(_SHORT_PROMPT))], 8)))
            await asyncio.sleep(1)
    return [task.result() for task in tasks]


async def _state(target: Target) -> str:
    cards = (await get(target.server.address, "/models"))["data"]
    return next(str(card["status"]["value"]) for card in cards if card["id"] == target.model)
