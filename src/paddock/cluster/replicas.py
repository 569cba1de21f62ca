"""Replicas that a cluster has come and go: it decides how many there are and who is asked. Here is the way to them, as
the fleet knows it; `cluster.link` is what carries it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from paddock.errors import ModelUnloaded, NoReplica, NotSupported, PaddockError, ServerStopping, Unavailable
from paddock.replicas.prompts import chain_for
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.retries import Retries
from paddock.types import Adapters, GenerateRequest, ModelInfo, PoolRequest, SlotState, TextQuestion
from paddock.wire import Delta, Pooled, Problem, Slots, Text, Tokens

_ATTEMPTS = 3
_LOOK_WAIT = 10.0
_LEARNT_EVERY = 60.0


# ── what is said on the way ──────────────────────────────────────────────────────────────────────────────────────────


class Taken(msgspec.Struct, frozen=True, omit_defaults=True, tag="taken"):
    """The first thing that is heard of a request: who has it, and that its prompt is understood."""

    replica: str
    fingerprint: str
    n_ctx: int
    prompt_tokens: int
    prompt: list[tuple[int, bytes]] | None = None


class Told(msgspec.Struct, frozen=True, tag="told"):
    """More of its answers."""

    deltas: list[Delta]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    problem: Problem


Answer = Tokens | Text | Pooled | Slots | Failed
encode = msgspec.msgpack.Encoder().encode
_heard = msgspec.msgpack.Decoder(Taken | Told | Failed)
_answer = msgspec.msgpack.Decoder(Answer)
_info = msgspec.msgpack.Decoder(ModelInfo)


class Stream(Protocol):
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __anext__(self) -> bytes: ...
    def cancel(self) -> None: ...


class Link(Protocol):
    """What carries requests to the replicas of one model. Whatever goes wrong with it is a `PaddockError`."""

    def generate(self, chain: tuple[int, ...], request: bytes) -> Stream: ...
    async def call(self, method: str, *arguments: Any) -> bytes:
        """By whichever replica."""

    async def call_all(self, method: str) -> list[bytes]:
        """By each."""

    def seen(self) -> list[ReplicaStatus]:
        """How the replicas were when they last said so."""


# ── the way in ───────────────────────────────────────────────────────────────────────────────────────────────────────


class ClusterPool:
    """Implements `replica.Replicas`."""

    def __init__(self, name: str, link: Link, *, wait_timeout: float) -> None:
        """A request that nobody takes within `wait_timeout` seconds is refused."""
        self.name = name
        self.link = link
        self.wait_timeout = wait_timeout
        self.retried: Counter[str] = Counter()
        """By replica that failed before anything was told."""
        self.tokens: Counter[str] = Counter()
        """What has been heard of each, token by token."""
        self.outcomes: dict[str, Counter[str]] = {}
        """How requests to each ended: `ok`, `left`, or the code of an error."""
        self._info: ModelInfo | None = None
        self._attempts: set[ClusterAttempt] = set()
        self._unused = asyncio.Event()
        self._unused.set()
        self._ended: PaddockError | None = None
        self._learning: asyncio.Task[None] | None = None

    def entrance(self, request: GenerateRequest | None) -> ClusterEntrance:
        return ClusterEntrance(self, request)

    def status(self) -> list[ReplicaStatus]:
        seen = self.link.seen()
        self._forget_all_but({status.name for status in seen})
        return [
            replace(
                status,
                retried=self.retried[status.name],
                tokens=self.tokens[status.name],
                outcomes=self.outcomes.get(status.name, {}),
            )
            for status in seen
        ]

    def _forget_all_but(self, names: set[str]) -> None:
        """A replica's name is never another's."""
        for counts in (self.retried, self.tokens, self.outcomes):
            for name in [name for name in counts if name not in names]:
                del counts[name]

    @property
    def info(self) -> ModelInfo | None:
        if self._info is None:
            return None
        return msgspec.structs.replace(self._info, n_slots=sum(status.load.slots for status in self.status()))

    async def slots(self) -> list[SlotState]:
        try:
            async with asyncio.timeout(_LOOK_WAIT):
                answers = [_answer.decode(answer) for answer in await self.link.call_all("slots")]
        except TimeoutError:
            raise Unavailable(f"not every replica of {self.name} answers", retry_after=1) from None
        return [slot for answer in answers if isinstance(answer, Slots) for slot in answer.slots]

    def drain(self, name: str) -> Coroutine[None, None, None]:
        raise self._not_ours()

    def undrain(self, name: str) -> bool:
        raise self._not_ours()

    def _not_ours(self) -> NotSupported:
        return NotSupported(f"the cluster has the replicas of {self.name} come and go", param="replica")

    def start(self) -> None:
        if self._learning is None:
            self._learning = asyncio.get_running_loop().create_task(self._learn())

    async def retire(self) -> None:
        self._ended = ModelUnloaded(f"the replicas of {self.name} have just changed: ask again", retry_after=1)
        await self._unused.wait()
        await self.close()

    async def stop(self, grace: float) -> None:
        self._ended = ServerStopping("the server is stopping")
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._unused.wait()
        for attempt in list(self._attempts):
            attempt.fail(self._ended)

    async def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        for attempt in list(self._attempts):
            attempt.fail(ServerStopping("the server is stopping"))

    def began(self, attempt: ClusterAttempt) -> None:
        self._attempts.add(attempt)
        self._unused.clear()

    def ended(self, attempt: ClusterAttempt, replica: str, outcome: str) -> None:
        self._attempts.discard(attempt)
        self.outcomes.setdefault(replica, Counter())[outcome] += 1
        if not self._attempts:
            self._unused.set()

    def refuse_if_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def _learn(self) -> None:
        """What the model says of itself, once one replica is there; and again now and then: it may be exchanged."""
        while True:
            try:
                self._info = _info.decode(await self.link.call("describe"))
                await asyncio.sleep(_LEARNT_EVERY)
            except PaddockError:
                await asyncio.sleep(1)


class ClusterEntrance:
    """One request's way to a replica, which is also what asks it."""

    def __init__(self, pool: ClusterPool, request: GenerateRequest | None) -> None:
        self._pool = pool
        self._chain = chain_for(request)
        self._retries = Retries(_ATTEMPTS)
        self.replica = ""

    async def enter(self) -> ClusterEntrance:
        self._pool.refuse_if_ended()
        self.replica = ""
        return self

    def may_go_elsewhere(self, error: PaddockError) -> bool:
        if not self._retries.allow(error):
            return False
        self._pool.retried[self.replica] += 1
        return True

    def generate(self, request: GenerateRequest) -> ClusterAttempt:
        stream = self._pool.link.generate(self._chain, encode(request))
        return ClusterAttempt(self._pool, self, stream, request)

    async def ask(self, question: TextQuestion) -> Tokens | Text:
        answer = await self._called("ask", encode(question))
        assert isinstance(answer, Tokens | Text), "a question about text has such an answer"
        return answer

    async def pool(self, request: PoolRequest, begun: Callable[[int], None]) -> Pooled:
        answer = await self._called("pool", encode(request))
        assert isinstance(answer, Pooled), "vectors were asked for"
        return answer

    async def _called(self, method: str, argument: bytes) -> Answer:
        try:
            async with asyncio.timeout(self._pool.wait_timeout):
                answer: Answer = _answer.decode(await self._pool.link.call(method, argument))
        except TimeoutError:
            raise nobody(self._pool) from None
        if isinstance(answer, Failed):
            raise answer.problem.error()
        return answer


class ClusterAttempt:
    """A request on the cluster. Cancelling its stream tells the replica that nobody wants the rest."""

    def __init__(self, pool: ClusterPool, entrance: ClusterEntrance, stream: Stream, request: GenerateRequest) -> None:
        self._pool = pool
        self._entrance = entrance
        self._stream = stream
        self.answers = self._unread = request.n
        self.adapters: Adapters = request.adapters
        self.prompt_tokens = 0
        self.prompt: list[tuple[int, bytes]] = []
        self.fingerprint = ""
        self.n_ctx = 0
        self._heard: deque[Delta] = deque()
        self._failure: PaddockError | None = None
        self._over = False
        pool.began(self)

    async def accepted(self) -> None:
        try:
            async with asyncio.timeout(self._pool.wait_timeout):
                taken = await self._next()
        except TimeoutError:
            self._end(NoReplica.code)
            raise nobody(self._pool) from None
        assert isinstance(taken, Taken), "a replica takes a request before it answers"
        self._entrance.replica = taken.replica
        self.prompt_tokens, self.prompt = taken.prompt_tokens, taken.prompt or []
        self.fingerprint, self.n_ctx = taken.fingerprint, taken.n_ctx

    def __aiter__(self) -> ClusterAttempt:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        while not self._heard:
            told = await self._next()
            assert isinstance(told, Told), "a request is taken once"
            self._heard.extend(told.deltas)
        delta = self._heard.popleft()
        if delta.progress is None:
            self._pool.tokens[self._entrance.replica] += 1
        if delta.finish is not None:
            self._unread -= 1
            if self._unread == 0:
                self._end("ok")
        return delta

    def close(self) -> None:
        self._end("left")

    def fail(self, error: PaddockError) -> None:
        """End it with this error, whatever the replica is doing."""
        self._failure = error
        self._stream.cancel()

    async def _next(self) -> Taken | Told:
        try:
            message: Taken | Told | Failed = _heard.decode(await anext(self._stream))
        except PaddockError as error:
            self._end((self._failure or error).code)
            raise self._failure or error from None
        except StopAsyncIteration:
            self._end(PaddockError.code)
            raise PaddockError(f"a replica of {self._pool.name} ended an answer too early") from None
        if isinstance(message, Failed):
            self._end(message.problem.code)
            raise message.problem.error()
        return message

    def _end(self, outcome: str) -> None:
        if not self._over:
            self._over = True
            if outcome != "ok":
                self._stream.cancel()
            self._pool.ended(self, self._entrance.replica, outcome)


def nobody(pool: ClusterPool) -> NoReplica:
    there = len(pool.status())
    return NoReplica(
        f"none of the {there} replicas of {pool.name} took the request within {pool.wait_timeout:g} s", retry_after=10
    )
