"""What a load is, as a scenario file and the command line describe it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from paddock_lab.bench.lengths import Length

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Figure = Literal[
    "requests/s",
    "tokens/s",
    "all done",
    "first token",
    "later turns",
    "long prompts",
    "between tokens",
    "longest stall",
]

_ALTERNATIVES = ({"concurrency", "rate"}, {"requests", "requests_per_client", "duration"})
_USUAL: Mapping[str, Any] = {"concurrency": 4, "requests": 32}


class BadScenario(ValueError):
    """A scenario that cannot be run; the message names the key."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load. Several numbers of clients, or several rates, make a curve."""

    concurrency: Count | list[Count] | None = None
    """Clients, each of which sends its next request when the last one is answered."""
    rate: Positive | list[Positive] | None = None
    """Conversations that begin in a second, however long the others take."""
    requests: Count | None = None
    requests_per_client: Count | None = None
    duration: Positive | None = None
    """Seconds in which requests are begun. Those under way are waited for."""
    prompt: Length = Length(256)
    output: Length = Length(128)
    conversations: str | None = None
    """A file of them, instead of texts made up."""
    shared_prefix: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of a system text that requests have in common, which is new to a server each time."""
    shared_share: Share = 1.0
    """Of the conversations, those that begin with it."""
    turns: Count = 1
    """Of a conversation; each is a request."""
    turn_prompt: Length = Length(12)
    """What is said in a turn after the first."""
    interleaved: bool = False
    """All conversations have their first turn before any has its second."""
    passes: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [""])
    """The load comes once for each name, with the same shared prefix: `["cold", "warm"]`."""
    cancel_share: Share = 0.0
    """Of the requests, those whose client leaves in the middle of the answer."""
    interference: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of long prompts that come while the answers of the others are being written."""
    interference_at_once: Count = 1
    interference_after: Count = 20
    """The first of them come when as many streams as there are clients have so many tokens."""
    interference_every: Positive | None = None
    """Seconds from the answers to these until more come. None: they come once."""
    interference_output: Count = 8
    copies: Count = 1
    """Processes of the server, each of which has all of this load at the same time."""
    against: str | None = None
    """Another load: the summary tells how many of its tokens per second are left in this one."""
    warm_up: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Short requests that come before, one after another, and do not count."""
    shows: list[Figure] = []
    """The figures that the load is for, which the summary compares."""

    def __post_init__(self) -> None:
        for names in _ALTERNATIVES:
            if sum(getattr(self, name) is not None for name in names) != 1:
                raise ValueError(f"it has exactly one of {', '.join(sorted(names))}")
        if self.rate is not None and self.requests_per_client is not None:
            raise ValueError("requests_per_client goes with concurrency only")
        if self.interleaved and (self.rate is not None or self.duration is not None):
            raise ValueError("interleaved goes with concurrency and a number of requests only")
        if not (self.concurrency or self.rate):
            raise ValueError("concurrency or rate is an empty list")
        for name in ("concurrency", "rate", "passes"):
            several = _several(getattr(self, name))
            if len(set(several)) < len(several):
                raise ValueError(f"{name} has something twice")


@dataclass(frozen=True)
class Point:
    """One of the loads of a curve: what is measured at a time."""

    load: Load
    label: str
    clients: int | None
    rate: float | None

    @property
    def requests(self) -> int | None:
        """None where time is the limit."""
        if self.load.requests_per_client is not None:
            return self.load.requests_per_client * (self.clients or 1)
        return self.load.requests

    @property
    def figures(self) -> Sequence[Figure]:
        if self.load.shows:
            return self.load.shows
        if self.load.interference:
            return ["longest stall", "long prompts"]
        return ["tokens/s", "first token"] if self.clients else ["first token"]


def points(loads: Mapping[str, Load]) -> Iterator[tuple[str, Point]]:
    """With the name of the load that each is of."""
    for name, load in loads.items():
        clients, rates = _several(load.concurrency), _several(load.rate)
        curve = len(clients) + len(rates) > 1
        for count in clients:
            yield name, Point(load, f"{name}, {count} at once" if curve else name, count, None)
        for rate in rates:
            yield name, Point(load, f"{name}, {rate:g}/s" if curve else name, None, rate)


def read(path: Path | None, flags: Mapping[str, Any], chosen: Sequence[str] = ()) -> dict[str, Load]:
    """The loads of a file, or the usual one; flags replace what the file says, in every load."""
    tables: dict[str, dict[str, Any]] = {"load": {}}
    if path:
        try:
            tables = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).load
        except (OSError, ValueError) as problem:
            raise BadScenario(f"{path}: {problem}") from problem
    if unknown := [name for name in chosen if name not in tables]:
        raise BadScenario(f"there is no load {unknown[0]!r}; there are {', '.join(tables)}")
    found = {}
    for name in chosen or tables:
        try:
            found[name] = msgspec.convert(_merged(tables[name], flags), Load, dec_hook=_decode)
        except msgspec.ValidationError as problem:
            where = f"{path}: load.{name}" if path else "load"
            raise BadScenario(f"{where}: {str(problem).replace('`$.', '`')}") from problem
        if (other := found[name].against) is not None and other not in tables:
            raise BadScenario(f"{path}: load.{name}: `against` names {other!r}; there are {', '.join(tables)}")
    if path:
        found = {name: _beside(load, path) if "conversations" not in flags else load for name, load in found.items()}
    return found


class _File(msgspec.Struct, forbid_unknown_fields=True):
    load: Annotated[dict[str, dict[str, Any]], msgspec.Meta(min_length=1)]


def _merged(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What is said later takes the place of its alternatives too."""
    merged: dict[str, Any] = dict(_USUAL)
    for said in (table, flags):
        for names in _ALTERNATIVES:
            if names & said.keys():
                merged = {name: value for name, value in merged.items() if name not in names}
        merged |= said
    return merged


def _decode(kind: type, value: object) -> object:
    if kind is Length and isinstance(value, int | str) and not isinstance(value, bool):
        return Length(value)
    raise ValueError(f"{value!r} is no length")


def _beside(load: Load, path: Path) -> Load:
    """A file that a scenario names lies beside it."""
    if load.conversations is None:
        return load
    return msgspec.structs.replace(load, conversations=str(path.parent / load.conversations))


def _several(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [] if values is None else [values]
