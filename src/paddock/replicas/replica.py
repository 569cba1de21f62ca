"""The interfaces of replicas: local workers, remote servers and clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from paddock.errors import PaddockError
from paddock.replicas.prefix_spans import PrefixSpan
from paddock.replicas.routing import Load
from paddock.types import Adapters, GenerateRequest, ModelInfo, PoolRequest, SlotState, TextQuestion
from paddock.wire.messages import Delta, Pooled, Text, Tokens

Health = Literal["ready", "unready", "down"]
"""`unready`: its model is loading. `down`: it does not answer, or only with failures."""


class Attempt(Protocol):
    """One running request: an async iterator of its deltas. Raises the `PaddockError` that ended the request early."""

    @property
    def answers(self) -> int: ...
    @property
    def adapters(self) -> Adapters: ...
    @property
    def prompt_tokens(self) -> int:
        """0 while unknown."""

    @property
    def prompt(self) -> list[tuple[int, bytes]]:
        """The prompt's tokens and their texts, if requested."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def worker_info(self) -> ModelInfo | None:
        """Of the local worker that runs it; None if it runs elsewhere."""

    async def accepted(self) -> None:
        """Wait until the request is accepted, or raise why it is not."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...
    async def __anext__(self) -> Delta: ...
    def close(self) -> None:
        """Cancel the request and free its slot."""


class Backend(Protocol):
    """A worker or server that is ready for requests."""

    def generate(self, request: GenerateRequest) -> Attempt:
        """Send a request."""

    async def ask(self, question: TextQuestion) -> Tokens | Text:
        """Tokenize, detokenize or render."""


@runtime_checkable
class PoolingBackend(Backend, Protocol):
    """One that also computes embeddings and scores."""

    async def pool(self, request: PoolRequest, on_progress: Callable[[int], None]) -> Pooled:
        """`on_progress` gets the number of tokens computed so far, if known."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica's status."""

    name: str
    kind: Literal["worker", "server", "ray"]
    health: Health
    engine: str
    engine_version: str
    load: Load
    url: str = ""
    node: str = ""
    """The cluster node."""
    pid: int | None = None
    fingerprint: str = ""
    drained: bool = False
    excluded: str = ""
    """Why it gets no deterministic requests."""
    failures: int = 0
    """In a row."""
    failure: str = ""
    """The last one."""
    retry_after: float = 0.0
    """Seconds until it is used again after them."""
    chosen: Mapping[str, int] = field(default_factory=dict)
    """Requests sent to it, by reason."""
    retried: int = 0
    """Requests that failed before their first delta and were retried."""
    tokens: int = 0
    """Tokens received from a remote server."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """How requests to a remote server ended: `ok`, `left` or an error code."""
    scraped: Mapping[str, float] = field(default_factory=dict)
    """A remote server's own metrics, by llama-server's names."""


class Dispatch(Protocol):
    """Finds a backend for one request, again after each failure."""

    @property
    def replica(self) -> str:
        """The current replica, if there are several."""

    async def acquire(self) -> Backend: ...
    def should_retry(self, error: PaddockError) -> bool:
        """Whether to retry after this failure, which happened before the first delta."""


class Replicas(Protocol):
    """The replicas of one model, as the fleet uses them."""

    def dispatch(self, request: GenerateRequest | None) -> Dispatch:
        """The dispatch of one request; None: a question that any replica can answer."""

    def status(self) -> list[ReplicaStatus]: ...
    @property
    def info(self) -> ModelInfo | None:
        """The model's info from the first known replica, with the slots of all."""

    async def slots(self) -> list[SlotState]:
        """The slots of the loaded replicas. Loads nothing."""

    def prefixes(self) -> list[PrefixSpan]:
        """Which replicas likely have the last prompts cached. Asks no replica."""

    def forget_prompts(self, tenant: str | None) -> None:
        """Show the last prompts of one tenant, or all, no more."""

    def drain(self, name: str) -> Coroutine[None, None, None]:
        """Send it no new requests, and wait until its running ones have ended. Raises `PaddockError` at once if that is
        not possible.
        """

    def undrain(self, name: str) -> bool:
        """Use it again. False if it was not drained."""

    def start(self) -> None:
        """Called once the event loop runs."""

    async def retire(self) -> None:
        """They were replaced: finish the running requests, then close."""

    async def stop(self, grace: float) -> None:
        """The server stops: refuse new requests, and give running remote ones `grace` seconds."""

    async def close(self) -> None: ...


class Replica(Protocol):
    name: str

    @property
    def info(self) -> ModelInfo | None:
        """The model's info; None while unknown."""

    @property
    def load(self) -> Load: ...
    @property
    def epoch(self) -> int:
        """Changes with each restart, which empties its cache."""

    @property
    def usable(self) -> bool:
        """Whether it may get requests, even if it must be loaded first."""

    @property
    def is_doubtful(self) -> bool:
        """Whether it may serve although it is not usable: `acquire` checks its health again."""

    @property
    def is_loaded(self) -> bool:
        """Whether it can serve without a load."""

    def unsupported(self, request: GenerateRequest) -> PaddockError | None:
        """Why it does not support the request, or None."""

    async def acquire(self, *, exact: bool) -> Backend:
        """Make it ready; `exact`: with a known fingerprint. Use the result at once, without another await in between.
        Raises `PaddockError`.
        """

    def start_load(self) -> None:
        """Start to load it for later requests."""

    async def slots(self) -> list[SlotState]:
        """Its slots; empty while it is not loaded. Loads nothing."""

    async def drain(self) -> None:
        """Finish the running requests; a local worker is unloaded then."""

    async def stop(self, grace: float | None) -> None:
        """Wait for running remote requests, at most `grace` seconds (None: no limit), then fail them.

        The lifecycle stops local workers.
        """

    def status(self) -> ReplicaStatus: ...
    def start(self) -> None:
        """Called once the event loop runs: start the health checks."""

    async def close(self) -> None: ...
