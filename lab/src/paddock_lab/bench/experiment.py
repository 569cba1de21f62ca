"""One run: every load on every server, round by round, in an order that favours none."""

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
from paddock_lab.bench.targets import Target
from paddock_lab.bench.window import Heard, Window
from paddock_lab.client import ChatFailed
from paddock_lab.clock import Clock, doubts
from paddock_lab.progress import Advance
from paddock_lab.report import Recording
from paddock_lab.servers import StartFailed


@dataclass(frozen=True)
class Place:
    """Where a number belongs."""

    round: int
    load: str
    """With the point of its curve and the pass, where it has any."""
    server: str


@dataclass(frozen=True)
class Seen:
    place: Place
    heard: Heard


@dataclass(frozen=True)
class Span:
    """A load on a server in a round, when all of it is done. What interferes is not counted."""

    place: Place
    seconds: float
    """From the first request to the end of the last answer."""
    requests: int
    """That were answered."""
    tokens: int
    client_share: float
    """Of a core, that the client took."""
    other_share: float | None
    """Of a core, that neither client nor server took; None where the server's processes are not ours to look at."""


@dataclass(frozen=True)
class Row:
    """What is measured under one name."""

    label: str
    load: str
    """That it is a point of."""
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
    """Of one process: what they say, and when they come."""

    writer: Writer
    conversations: Iterator[Conversation]
    arrivals: Iterator[float]


@dataclass
class Experiment:
    targets: Sequence[Target]
    points: Sequence[tuple[str, Point]]
    recording: Recording
    copy: Callable[[Target], AbstractContextManager[Target]]
    """Another process of the same server, which ends with the context."""
    seed: int
    words_per_token: float
    scale: float
    seconds: float
    """For one request."""
    recorded: Mapping[str, Sequence[Recorded]] = field(default_factory=dict)
    """Conversations by the file that a load names."""
    probes: Sequence[str] = ()
    other_key: str = ""
    """The second API key, for the probe `fairness`."""
    requests: list[Seen] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    """Of the probes."""
    notes: list[str] = field(default_factory=list)

    def run(self, rounds: int, advance: Advance) -> None:
        order, self._begun = random.Random(self.seed), time.perf_counter()
        for number in range(rounds):
            for load, point in self.points:
                for target in order.sample(self.targets, len(self.targets)):
                    with ExitStack() as stack:
                        if targets := self._copies(stack, target, point):
                            asyncio.run(self._put_under(load, point, targets, number))
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
            failure = next(_single(failures))
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
        """The server and as many more as the load wants of it; none where they are not to be had."""
        more = point.load.copies - 1
        try:
            if more and target.server.entrant.is_url:
                raise StartFailed("a server at a URL cannot be started again")
            return [target, *(stack.enter_context(self.copy(target)) for _ in range(more))]
        except StartFailed as failure:
            self.notes.append(f"{point.label} on {target.name} was left out: {failure}")
            return []

    async def _put_under(self, load: str, point: Point, targets: Sequence[Target], number: int) -> None:
        servers = [target.server for target in targets]
        clients = [self._clients(point, target, number, copy) for copy, target in enumerate(targets)]
        for at, row in enumerate(rows_of([(load, point)])):
            place, heard = Place(number, row.label, targets[0].name), list[Heard]()
            windows = [Window(point, target, self.seconds, self._noting(place, heard)) for target in targets]
            if at == 0:
                for window, each in zip(windows, clients, strict=True):
                    await window.warm_up(each.writer.short() for _ in range(point.load.warm_up))
            before = Clock.read(servers)
            async with asyncio.TaskGroup() as group:
                for window, each in zip(windows, clients, strict=True):
                    group.create_task(window.run(each.conversations, each.writer.long_prompts(), each.arrivals))
            client, others = Clock.read(servers).shares_since(before)
            self._end(place, heard, client, others if servers[0].process else None)

    def _clients(self, point: Point, target: Target, number: int, copy: int) -> _Clients:
        what = f"{self.seed} {point.label} {number} {copy}"
        writer = Writer(
            point.load,
            chance=random.Random(what),
            tags=random.Random(f"{what} {target.name}"),
            words_per_token=self.words_per_token,
            scale=self.scale,
        )
        conversations = writer.conversations(self.recorded.get(point.load.conversations or "", ()))
        return _Clients(writer, conversations, poisson(point.rate or 1.0, random.Random(f"{what} arrivals")))

    def _noting(self, place: Place, heard: list[Heard]) -> Callable[[Heard], None]:
        def note(one: Heard) -> None:
            heard.append(one)
            self.requests.append(Seen(place, one))
            self.recording.add({"record": "request", **asdict(place), **_plain(one, self._begun)})

        return note

    def _end(self, place: Place, heard: Sequence[Heard], client: float, others: float | None) -> None:
        answered = [one for one in heard if one.kind in ("first", "later") and not one.error]
        if not answered:
            return
        seconds = max(one.done for one in answered) - min(one.sent for one in answered)
        span = Span(place, seconds, len(answered), sum(one.tokens for one in answered), client, others)
        self.spans.append(span)
        self.recording.add(
            {"record": "load", **asdict(place), **{k: v for k, v in asdict(span).items() if k != "place"}}
        )


def _single(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _single(failure)
        else:
            yield failure


def _plain(heard: Heard, begun: float) -> dict[str, object]:
    """Moments since the run began."""
    return {**asdict(heard), "sent": round(heard.sent - begun, 6), "done": round(heard.done - begun, 6)}
