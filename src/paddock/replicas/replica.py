"""What a pool asks of a replica, whether it is a worker of our own or a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from paddock.errors import PaddockError
from paddock.replicas.routing import Load
from paddock.types import Adapters, GenerateRequest, ModelInfo, PoolRequest, SlotState, TextQuestion
from paddock.wire import Delta, Pooled, Text, Tokens

Health = Literal["ready", "unready", "down"]
"""It can be asked; not yet, because it is loading; or it does not answer, or only with failures."""


class Attempt(Protocol):
    """One request under way: an async iterator of its deltas, in order, that ends after the last.

    Raises the `PaddockError` that ended the request early.
    """

    @property
    def answers(self) -> int: ...
    @property
    def adapters(self) -> Adapters: ...
    @property
    def prompt_tokens(self) -> int:
        """As far as it is known."""

    @property
    def prompt(self) -> list[tuple[int, bytes]]:
        """The prompt's tokens and their names, where the request asked for them."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    async def accepted(self) -> None:
        """Wait until the request was taken, or raise why it was not."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...
    async def __anext__(self) -> Delta: ...
    def close(self) -> None:
        """Nobody listens any more: the request's place is freed."""


class Serving(Protocol):
    """Somebody who answers requests now."""

    def generate(self, request: GenerateRequest) -> Attempt:
        """Send a request."""

    async def ask(self, question: TextQuestion) -> Tokens | Text:
        """Have a question about text answered."""


@runtime_checkable
class MakesVectors(Serving, Protocol):
    """One that also makes vectors of texts, where its model is for that."""

    async def pool(self, request: PoolRequest, begun: Callable[[int], None]) -> Pooled:
        """`begun` is told how many tokens are computed so far, where that is known."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What a look at a replica shows."""

    name: str
    kind: Literal["worker", "server", "ray"]
    health: Health
    engine: str
    engine_version: str
    load: Load
    url: str = ""
    node: str = ""
    """Of a cluster."""
    pid: int | None = None
    fingerprint: str = ""
    drained: bool = False
    excluded: str = ""
    """Why it is not asked for what must be the same everywhere."""
    failures: int = 0
    """In a row."""
    failure: str = ""
    """The last of them."""
    retry_after: float = 0.0
    """Seconds for which it is left alone after them."""
    chosen: Mapping[str, int] = field(default_factory=dict)
    """Requests that were sent there, by the reason."""
    retried: int = 0
    """Those that failed before anything was told, and went elsewhere."""
    tokens: int = 0
    """What has been heard of a server, token by token."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """How requests to a server ended: `ok`, `left`, or the code of an error."""
    scraped: Mapping[str, float] = field(default_factory=dict)
    """What a server counts itself, by llama-server's names."""


class Entrance(Protocol):
    """One request's way to somebody who answers it."""

    @property
    def replica(self) -> str:
        """Whom it came to, where there are several."""

    async def enter(self) -> Serving: ...
    def may_go_elsewhere(self, error: PaddockError) -> bool:
        """Whether it is worth another attempt after this failure, of which nobody has been told."""


class Replicas(Protocol):
    """Those that serve a model together, as the fleet knows them."""

    def entrance(self, request: GenerateRequest | None) -> Entrance:
        """The way in for one request, however many replicas it takes; None: a question that anybody can answer."""

    def status(self) -> list[ReplicaStatus]: ...
    @property
    def info(self) -> ModelInfo | None:
        """What the first that is known says of the model, and how many requests all together can run at once."""

    async def slots(self) -> list[SlotState]:
        """The running places of those that are there. Wakes nothing."""

    def drain(self, name: str) -> Coroutine[None, None, None]:
        """Send it nothing any more, and wait until it has finished what it has. Raises `PaddockError` at once where
        that cannot be.
        """

    def undrain(self, name: str) -> bool:
        """Use it again. False if it was not drained."""

    def start(self) -> None:
        """The event loop runs."""

    async def retire(self) -> None:
        """Others take their place: let everybody finish, and be done."""

    async def stop(self, grace: float) -> None:
        """The server stops: take nothing new, and give what is under way elsewhere so many seconds."""

    async def close(self) -> None: ...


class Replica(Protocol):
    name: str

    @property
    def info(self) -> ModelInfo | None:
        """What the model says of itself there; None while that is not known."""

    @property
    def load(self) -> Load: ...
    @property
    def life(self) -> int:
        """Another number after each start, before which everything it held is forgotten."""

    @property
    def usable(self) -> bool:
        """Whether it may be asked at all, were it to be loaded first."""

    @property
    def awake(self) -> bool:
        """Whether it answers without having to load anything first."""

    def beyond(self, request: GenerateRequest) -> PaddockError | None:
        """Why it cannot do what the request asks for, or None."""

    async def enter(self, *, exact: bool) -> Serving:
        """Have it ready; with its fingerprint known, where the answer must be `exact`. To be used at once, without
        another await in between. Raises `PaddockError`.
        """

    def wake(self) -> None:
        """Begin to load it, for those who come later."""

    async def slots(self) -> list[SlotState]:
        """Its running places; none while it has none. Wakes nothing."""

    async def leave(self) -> None:
        """Finish what is under way; nobody sends anything any more. A worker of ours then ends."""

    async def stop(self, grace: float | None) -> None:
        """It is not asked any more: what is under way elsewhere has so many seconds to finish, or as many as it takes,
        and then ends with an error. What becomes of a worker of ours its lifecycle knows.
        """

    def status(self) -> ReplicaStatus: ...
    def start(self) -> None:
        """The event loop runs: look after it from now on."""

    async def close(self) -> None: ...
