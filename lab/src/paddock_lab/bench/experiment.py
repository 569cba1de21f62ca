"""One run: every load on every server in each round, in random order of the servers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field

from paddock_lab.bench.conversations import Conversation, Recorded, Writer
from paddock_lab.bench.lengths import poisson
from paddock_lab.bench.loads import Point
from paddock_lab.bench.probes import PROBES, Measured, Result, Session
from paddock_lab.bench.window import RequestResult, Window
from paddock_lab.client import ChatFailed
from paddock_lab.clock import Clock, doubts
from paddock_lab.progress import Advance
from paddock_lab.report import Recording
from paddock_lab.servers import StartFailed
from paddock_lab.targets import Target


@dataclass(frozen=True)
class Place:
    """The round, load and server of a measurement."""

    round: int
    load: str
    """With the point of its curve and the pass, if it has any."""
    server: str


@dataclass(frozen=True)
class Sample:
    place: Place
    result: RequestResult


@dataclass(frozen=True)
class Span:
    """A load on a server in one round, as a whole and without the interference."""

    place: Place
    seconds: float
    """From the first request to the end of the last answer."""
    requests: int
    """Answered requests."""
    tokens: int
    client_share: float
    """Part of a core that the client used."""
    other_share: float | None
    """Part of a core that other processes used; None for a server at a URL."""


@dataclass(frozen=True)
class Row:
    """A row of the tables: one pass of one point of a load."""

    label: str
    load: str
    """The name of the load in the scenario."""
    point: Point
    pass_name: str


def rows_of(points: Sequence[tuple[str, Point]]) -> list[Row]:
    return [
        Row(f"{point.label}, {name}" if name else point.label, load, point, name)
        for load, point in points
        for name in point.load.passes
    ]


@dataclass(frozen=True)
class _Clients:
    """The conversations and arrival times of the clients of one process."""

    writer: Writer
    conversations: Iterator[Conversation]
    arrivals: Iterator[float]


@dataclass
class Experiment:
    targets: Sequence[Target]
    points: Sequence[tuple[str, Point]]
    recording: Recording
    copy: Callable[[Target], AbstractContextManager[Target]]
    """Starts another process of the same server."""
    seed: int
    words_per_token: float
    scale: float
    seconds: float
    """The timeout of one request."""
    recorded: Mapping[str, Sequence[Recorded]] = field(default_factory=dict)
    """Conversations by file name."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """Texts by file name."""
    probes: Sequence[str] = ()
    other_key: str = ""
    """The second API key, for the probe `fairness`."""
    requests: list[Sample] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    """Results of the probes."""
    notes: list[str] = field(default_factory=list)

    def run(self, rounds: int, advance: Advance) -> None:
        order, self._begun = random.Random(self.seed), time.perf_counter()
        for number in range(rounds):
            for load, point in self.points:
                for target in order.sample(self.targets, len(self.targets)):
                    with ExitStack() as stack:
                        if targets := self._copies(stack, target, point):
                            asyncio.run(self._run_load(load, point, targets, number))
                    advance(f"round {number + 1}: {point.label} on {target.name}")
            for probe in self.probes:
                for target in order.sample(self.targets, len(self.targets)):
                    asyncio.run(self._probe(probe, target, number))
                    advance(f"round {number + 1}: {probe} on {target.name}")

    async def _probe(self, probe: str, target: Target, number: int) -> None:
        session = Session(target, self.scale, f"{self.seed} {probe} {number}", self.other_key)
        before, measured = Clock.read([target.server]), list[Measured]()
        try:
            # The model may have been unloaded while other servers were measured.
            await target.ask(session.prompt(), 2)
            async with asyncio.timeout(self.seconds):
                measured = await PROBES[probe](session)
        except* (ChatFailed, OSError) as failures:
            failure = next(_leaves(failures))
            self.notes.append(f"{probe} on {target.name} failed: {type(failure).__name__} {failure}")
        client, others = Clock.read([target.server]).shares_since(before)
        shares = doubts(client, others if target.server.process else 0.0)
        self.notes += [f"{probe} on {target.name}: {doubt}" for doubt in shares]
        for each in measured:
            self.results.append(Result(number, probe, target.name, each))
            self.recording.add(
                {"record": "probe", "round": number, "probe": probe, "server": target.name, **asdict(each)}
            )

    def _copies(self, stack: ExitStack, target: Target, point: Point) -> list[Target]:
        """The server and its additional processes; empty if they cannot be started."""
        more = point.load.copies - 1
        try:
            if more and target.server.entrant.is_url:
                raise StartFailed("a server at a URL cannot be started again")
            return [target, *(stack.enter_context(self.copy(target)) for _ in range(more))]
        except StartFailed as failure:
            self.notes.append(f"{point.label} on {target.name} was skipped: {failure}")
            return []

    async def _run_load(self, load: str, point: Point, targets: Sequence[Target], number: int) -> None:
        servers = [target.server for target in targets]
        clients = [self._clients(point, target, number, copy) for copy, target in enumerate(targets)]
        for at, row in enumerate(rows_of([(load, point)])):
            place, results = Place(number, row.label, targets[0].name), list[RequestResult]()
            windows = [Window(point, target, self.seconds, self._recorder(place, results)) for target in targets]
            if at == 0:
                for window, each in zip(windows, clients, strict=True):
                    await window.warm_up(each.writer.short() for _ in range(point.load.warm_up))
            before = Clock.read(servers)
            async with asyncio.TaskGroup() as group:
                for window, each in zip(windows, clients, strict=True):
                    group.create_task(window.run(each.conversations, each.writer.long_prompts(), each.arrivals))
            client, others = Clock.read(servers).shares_since(before)
            self._record_span(place, results, client, others if servers[0].process else None)

    def _clients(self, point: Point, target: Target, number: int, copy: int) -> _Clients:
        seed = f"{self.seed} {point.label} {number} {copy}"
        writer = Writer(
            point.load,
            rng=random.Random(seed),
            tags=random.Random(f"{seed} {target.name}"),
            words_per_token=self.words_per_token,
            scale=self.scale,
            document=self.documents.get(point.load.document or "", ""),
        )
        conversations = writer.conversations(self.recorded.get(point.load.conversations or "", ()))
        return _Clients(writer, conversations, poisson(point.rate or 1.0, random.Random(f"{seed} arrivals")))

    def _recorder(self, place: Place, results: list[RequestResult]) -> Callable[[RequestResult], None]:
        def record(one: RequestResult) -> None:
            results.append(one)
            self.requests.append(Sample(place, one))
            self.recording.add({"record": "request", **asdict(place), **_as_json(one, self._begun)})

        return record

    def _record_span(self, place: Place, results: Sequence[RequestResult], client: float, others: float | None) -> None:
        answered = [one for one in results if one.kind in ("first", "later") and not one.error]
        if not answered:
            return
        seconds = max(one.done for one in answered) - min(one.sent for one in answered)
        span = Span(place, seconds, len(answered), sum(one.tokens for one in answered), client, others)
        self.spans.append(span)
        self.recording.add(
            {"record": "load", **asdict(place), **{k: v for k, v in asdict(span).items() if k != "place"}}
        )


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _leaves(failure)
        else:
            yield failure


def _as_json(result: RequestResult, begun: float) -> dict[str, object]:
    """Times are relative to the start of the run."""
    return {**asdict(result), "sent": round(result.sent - begun, 6), "done": round(result.done - begun, 6)}
