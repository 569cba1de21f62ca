"""Loads, as described by a scenario file and the command line."""

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
_DEFAULTS: Mapping[str, Any] = {"concurrency": 4, "requests": 32}


class BadScenario(ValueError):
    """An invalid scenario. The message names the key."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load. Several values of `concurrency` or `rate` make a curve."""

    concurrency: Count | list[Count] | None = None
    """Number of clients. Each sends its next request when the previous one is answered (closed loop)."""
    rate: Positive | list[Positive] | None = None
    """Conversations started per second, at random times (open loop)."""
    requests: Count | None = None
    requests_per_client: Count | None = None
    duration: Positive | None = None
    """Seconds in which requests are started. Running requests then finish."""
    prompt: Length = Length(256)
    output: Length = Length(128)
    conversations: str | None = None
    """A file of conversations, instead of synthetic texts."""
    document: str | None = None
    """A file with text, instead of synthetic texts. A request asks for a part of it again, with one word replaced."""
    body: dict[str, Any] = {}
    """Further fields of every request."""
    shared_prefix: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of a system prompt that requests share. It is new in each run of the load."""
    shared_share: Share = 1.0
    """The share of conversations that begin with the shared prefix."""
    turns: Count = 1
    """Turns of a conversation. Each is a request."""
    turn_prompt: Length = Length(12)
    """Tokens of the user message in turns after the first."""
    interleaved: bool = False
    """All first turns are sent before any second turn."""
    passes: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: [""])
    """The load runs once for each name, with the same shared prefix: `["cold", "warm"]`."""
    cancel_share: Share = 0.0
    """The share of requests whose client disconnects during the answer."""
    interference: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of long prompts that are sent while other answers are streamed."""
    interference_at_once: Count = 1
    interference_after: Count = 20
    """The first long prompts are sent when as many streams as there are clients have this many tokens."""
    interference_every: Positive | None = None
    """Seconds between the answers to these prompts and the next ones. None: they are sent once."""
    interference_output: Count = 8
    copies: Count = 1
    """Processes of the server. Each gets the whole load at the same time."""
    against: str | None = None
    """Another load: the summary shows the tokens per second of this load relative to it."""
    warm_up: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Short requests before the load, one after another. They are not counted."""
    shows: list[Figure] = []
    """The figures that the load is made for. The summary compares them."""

    def __post_init__(self) -> None:
        for names in _ALTERNATIVES:
            if sum(getattr(self, name) is not None for name in names) != 1:
                raise ValueError(f"exactly one of {', '.join(sorted(names))} is required")
        if self.rate is not None and self.requests_per_client is not None:
            raise ValueError("requests_per_client requires concurrency")
        if self.interleaved and (self.rate is not None or self.duration is not None):
            raise ValueError("interleaved requires concurrency and a number of requests")
        if self.document is not None and self.conversations is not None:
            raise ValueError("document and conversations exclude each other")
        if not (self.concurrency or self.rate):
            raise ValueError("concurrency or rate is an empty list")
        for name in ("concurrency", "rate", "passes"):
            several = _as_list(getattr(self, name))
            if len(set(several)) < len(several):
                raise ValueError(f"{name} has a repeated value")


@dataclass(frozen=True)
class Point:
    """One point of a curve: a load with one number of clients or one rate."""

    load: Load
    label: str
    clients: int | None
    rate: float | None

    @property
    def requests(self) -> int | None:
        """None if the load is limited by time."""
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
    """All points, each with the name of its load."""
    for name, load in loads.items():
        clients, rates = _as_list(load.concurrency), _as_list(load.rate)
        curve = len(clients) + len(rates) > 1
        for count in clients:
            yield name, Point(load, f"{name}, {count} at once" if curve else name, count, None)
        for rate in rates:
            yield name, Point(load, f"{name}, {rate:g}/s" if curve else name, None, rate)


def read(path: Path | None, flags: Mapping[str, Any], chosen: Sequence[str] = ()) -> dict[str, Load]:
    """The loads of a file, or the default load. Flags replace values of the file in every load."""
    tables: dict[str, dict[str, Any]] = {"load": {}}
    if path:
        try:
            tables = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).load
        except (OSError, ValueError) as problem:
            raise BadScenario(f"{path}: {problem}") from problem
    if unknown := [name for name in chosen if name not in tables]:
        raise BadScenario(f"unknown load {unknown[0]!r}; the loads are {', '.join(tables)}")
    found = {}
    for name in chosen or tables:
        try:
            found[name] = msgspec.convert(_merged(tables[name], flags), Load, dec_hook=_decode)
        except msgspec.ValidationError as problem:
            where = f"{path}: load.{name}" if path else "load"
            raise BadScenario(f"{where}: {str(problem).replace('`$.', '`')}") from problem
        if (other := found[name].against) is not None and other not in tables:
            raise BadScenario(
                f"{path}: load.{name}: `against` names the unknown load {other!r}; the loads are {', '.join(tables)}"
            )
    if path:
        found = {name: _resolve_paths(load, path, flags) for name, load in found.items()}
    return found


class _File(msgspec.Struct, forbid_unknown_fields=True):
    load: Annotated[dict[str, dict[str, Any]], msgspec.Meta(min_length=1)]


def _merged(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """A later source also replaces the alternatives of a key."""
    merged: dict[str, Any] = dict(_DEFAULTS)
    for source in (table, flags):
        for names in _ALTERNATIVES:
            if names & source.keys():
                merged = {name: value for name, value in merged.items() if name not in names}
        merged |= source
    return merged


def _decode(kind: type, value: object) -> object:
    if kind is Length and isinstance(value, int | str) and not isinstance(value, bool):
        return Length(value)
    raise ValueError(f"{value!r} is not a length")


def _resolve_paths(load: Load, path: Path, flags: Mapping[str, Any]) -> Load:
    """Files that the scenario names are relative to it."""
    named = {name: getattr(load, name) for name in ("conversations", "document") if name not in flags}
    found = {name: str(path.parent / file) for name, file in named.items() if file is not None}
    return msgspec.structs.replace(load, **found)


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [] if values is None else [values]
