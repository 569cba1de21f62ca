"""One run: every load on every server, round by round, in an order that favours none."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from paddock.lab.bench.conversations import Recorded, Writer
from paddock.lab.bench.lengths import poisson
from paddock.lab.bench.loads import Point
from paddock.lab.bench.targets import Target
from paddock.lab.bench.window import Heard, Window
from paddock.lab.clock import Clock
from paddock.lab.progress import Advance
from paddock.lab.report import Recording


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


@dataclass
class Experiment:
    targets: Sequence[Target]
    points: Sequence[tuple[str, Point]]
    recording: Recording
    seed: int
    words_per_token: float
    scale: float
    seconds: float
    """For one request."""
    recorded: Mapping[str, Sequence[Recorded]] = field(default_factory=dict)
    """Conversations by the file that a load names."""
    requests: list[Seen] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def run(self, rounds: int, advance: Advance) -> None:
        order, begun = random.Random(self.seed), time.perf_counter()
        for number in range(rounds):
            for load, point in self.points:
                for target in order.sample(self.targets, len(self.targets)):
                    rows = rows_of([(load, point)])
                    asyncio.run(self._put_under(point, rows, target, number, begun))
                    advance(f"round {number + 1}: {point.label} on {target.name}")

    async def _put_under(self, point: Point, rows: Sequence[Row], target: Target, number: int, begun: float) -> None:
        chance = random.Random(f"{self.seed} {point.label} {number}")
        writer = Writer(
            point.load,
            chance=chance,
            tags=random.Random(f"{self.seed} {point.label} {number} {target.name}"),
            words_per_token=self.words_per_token,
            scale=self.scale,
        )
        arrivals = random.Random(f"{self.seed} {point.label} {number} arrivals")
        conversations = writer.conversations(self.recorded.get(point.load.conversations or "", ()))
        for at, row in enumerate(rows):
            place, heard = Place(number, row.label, target.name), list[Heard]()

            def note(one: Heard, place: Place = place, heard: list[Heard] = heard) -> None:
                heard.append(one)
                self.requests.append(Seen(place, one))
                self.recording.add({"record": "request", **asdict(place), **_plain(one, begun)})

            window = Window(point, target, self.seconds, note)
            if at == 0:
                await window.warm_up(writer.short() for _ in range(point.load.warm_up))
            before = Clock.read([target.server])
            await window.run(conversations, writer.long_prompts(), poisson(point.rate or 1.0, arrivals))
            client, others = Clock.read([target.server]).shares_since(before)
            self._end(place, heard, client, others if target.server.process else None)

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


def _plain(heard: Heard, begun: float) -> dict[str, object]:
    """Moments since the run began."""
    return {**asdict(heard), "sent": round(heard.sent - begun, 6), "done": round(heard.done - begun, 6)}
