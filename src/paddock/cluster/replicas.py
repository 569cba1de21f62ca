"""The replicas of a model on a cluster. The cluster scales them and routes requests; `cluster.link` sends them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from paddock.errors import ModelUnloaded, NoReplica, NotSupported, PaddockError, ServerStopping, Unavailable
from paddock.replicas.prefix_spans import PrefixSpan, RecentPrompts
from paddock.replicas.prompts import chain_for
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.retries import Retries
from paddock.types import Adapters, GenerateRequest, ModelInfo, PoolRequest, SlotState, TextQuestion
from paddock.wire.messages import Delta, Pooled, Problem, Slots, Text, Tokens

_ATTEMPTS = 3
_SLOTS_TIMEOUT = 10.0
_INFO_INTERVAL = 60.0


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class AcceptedBy(msgspec.Struct, frozen=True, omit_defaults=True, tag="taken"):
    """The first message: a replica has accepted the request."""

    replica: str
    fingerprint: str
    n_ctx: int
    prompt_tokens: int
    prompt: list[tuple[int, bytes]] | None = None


class Deltas(msgspec.Struct, frozen=True, tag="told"):
    """The next deltas of a response."""

    deltas: list[Delta]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    problem: Problem


Answer = Tokens | Text | Pooled | Slots | Failed
encode = msgspec.msgpack.Encoder().encode
_stream_message = msgspec.msgpack.Decoder(AcceptedBy | Deltas | Failed)
_answer = msgspec.msgpack.Decoder(Answer)
_info = msgspec.msgpack.Decoder(ModelInfo)


class Stream(Protocol):
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __anext__(self) -> bytes: ...
    def cancel(self) -> None: ...


class Link(Protocol):
    """Sends requests to the replicas of one model. Raises `PaddockError`."""

    def generate(self, chain: tuple[int, ...], request: bytes, *, is_batch: bool) -> Stream: ...
    async def call(self, method: str, *arguments: Any) -> bytes:
        """Call any replica."""

    async def call_all(self, method: str) -> list[bytes]:
        """Call each replica."""

    def seen(self) -> list[ReplicaStatus]:
        """The replicas' last reported status."""

    def held(self, chain: tuple[int, ...]) -> dict[str, int]:
        """How many leading blocks of the chain each replica likely has cached."""


# ── the replica set ───────────────────────────────────────────────────────────────────────────────────────────────────


class ClusterReplicas:
    """Implements `replica.Replicas`."""

    def __init__(self, name: str, link: Link, *, wait_timeout: float) -> None:
        """A request that no replica accepts within `wait_timeout` seconds is refused."""
        self.name = name
        self.link = link
        self.wait_timeout = wait_timeout
        self.retried: Counter[str] = Counter()
        """Retried requests, by the replica that failed."""
        self.tokens: Counter[str] = Counter()
        """Received tokens, by replica."""
        self.outcomes: dict[str, Counter[str]] = {}
        """How requests to each replica ended: `ok`, `left` or an error code."""
        self.recent = RecentPrompts()
        self._info: ModelInfo | None = None
        self._attempts: set[ClusterAttempt] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended: PaddockError | None = None
        self._info_task: asyncio.Task[None] | None = None

    def dispatch(self, request: GenerateRequest | None) -> ClusterDispatch:
        return ClusterDispatch(self, request)

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
        """Names of replicas are never reused."""
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
            async with asyncio.timeout(_SLOTS_TIMEOUT):
                answers = [_answer.decode(answer) for answer in await self.link.call_all("slots")]
        except TimeoutError:
            raise Unavailable(
                f"not all replicas of {self.name} returned their slots within {_SLOTS_TIMEOUT:g} s", retry_after=1
            ) from None
        return [slot for answer in answers if isinstance(answer, Slots) for slot in answer.slots]

    def prefixes(self) -> list[PrefixSpan]:
        return self.recent.spans(self.link.held)

    def forget_prompts(self, tenant: str | None) -> None:
        self.recent.forget(tenant)

    def drain(self, name: str) -> Coroutine[None, None, None]:
        raise self._not_supported()

    def undrain(self, name: str) -> bool:
        raise self._not_supported()

    def _not_supported(self) -> NotSupported:
        return NotSupported(f"the cluster manages the replicas of {self.name}", param="replica")

    def start(self) -> None:
        if self._info_task is None:
            self._info_task = asyncio.get_running_loop().create_task(self._refresh_info())

    async def retire(self) -> None:
        self._ended = ModelUnloaded(f"the replicas of {self.name} have changed: send the request again", retry_after=1)
        await self._idle.wait()
        await self.close()

    async def stop(self, grace: float) -> None:
        self._ended = ServerStopping("the server is stopping")
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        for attempt in list(self._attempts):
            attempt.fail(self._ended)

    async def close(self) -> None:
        if self._info_task is not None:
            self._info_task.cancel()
            await asyncio.gather(self._info_task, return_exceptions=True)
        for attempt in list(self._attempts):
            attempt.fail(ServerStopping("the server is stopping"))

    def began(self, attempt: ClusterAttempt) -> None:
        self._attempts.add(attempt)
        self._idle.clear()

    def ended(self, attempt: ClusterAttempt, replica: str, outcome: str) -> None:
        self._attempts.discard(attempt)
        self.outcomes.setdefault(replica, Counter())[outcome] += 1
        if not self._attempts:
            self._idle.set()

    def refuse_if_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def _refresh_info(self) -> None:
        """Read the model's info from any replica, again from time to time: the model may be replaced."""
        while True:
            try:
                self._info = _info.decode(await self.link.call("describe"))
                await asyncio.sleep(_INFO_INTERVAL)
            except PaddockError:
                await asyncio.sleep(1)


class ClusterDispatch:
    """The dispatch of one request, and its backend."""

    def __init__(self, replicas: ClusterReplicas, request: GenerateRequest | None) -> None:
        self._replicas = replicas
        self._chain = chain_for(request)
        self._retries = Retries(_ATTEMPTS)
        self.replica = ""

    async def acquire(self) -> ClusterDispatch:
        self._replicas.refuse_if_ended()
        self.replica = ""
        return self

    def should_retry(self, error: PaddockError) -> bool:
        if not self._retries.allow(error):
            return False
        self._replicas.retried[self.replica] += 1
        return True

    def generate(self, request: GenerateRequest) -> ClusterAttempt:
        stream = self._replicas.link.generate(self._chain, encode(request), is_batch=request.origin.batch)
        self._replicas.recent.add(self._chain, request)
        return ClusterAttempt(self._replicas, self, stream, request)

    async def ask(self, question: TextQuestion) -> Tokens | Text:
        answer = await self._call("ask", encode(question))
        assert isinstance(answer, Tokens | Text), "the reply to a text question"
        return answer

    async def pool(self, request: PoolRequest, on_progress: Callable[[int], None]) -> Pooled:
        answer = await self._call("pool", encode(request))
        assert isinstance(answer, Pooled), "the reply to a pooling request"
        return answer

    async def _call(self, method: str, argument: bytes) -> Answer:
        try:
            async with asyncio.timeout(self._replicas.wait_timeout):
                answer: Answer = _answer.decode(await self._replicas.link.call(method, argument))
        except TimeoutError:
            raise _no_replica(self._replicas) from None
        if isinstance(answer, Failed):
            raise answer.problem.error()
        return answer


class ClusterAttempt:
    """A request running on the cluster. Cancelling its stream cancels the request on the replica."""

    def __init__(
        self, replicas: ClusterReplicas, dispatch: ClusterDispatch, stream: Stream, request: GenerateRequest
    ) -> None:
        self._replicas = replicas
        self._dispatch = dispatch
        self._stream = stream
        self.answers = self._unread = request.n
        self.adapters: Adapters = request.adapters
        self.prompt_tokens = 0
        self.prompt: list[tuple[int, bytes]] = []
        self.fingerprint = ""
        self.n_ctx = 0
        self.worker_info: ModelInfo | None = None
        self._received: deque[Delta] = deque()
        self._failure: PaddockError | None = None
        self._over = False
        replicas.began(self)

    async def accepted(self) -> None:
        try:
            async with asyncio.timeout(self._replicas.wait_timeout):
                accepted = await self._next()
        except TimeoutError:
            self._end(NoReplica.code)
            raise _no_replica(self._replicas) from None
        assert isinstance(accepted, AcceptedBy), "a replica accepts a request first"
        self._dispatch.replica = accepted.replica
        self.prompt_tokens, self.prompt = accepted.prompt_tokens, accepted.prompt or []
        self.fingerprint, self.n_ctx = accepted.fingerprint, accepted.n_ctx

    def __aiter__(self) -> ClusterAttempt:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        while not self._received:
            message = await self._next()
            assert isinstance(message, Deltas), "a request is accepted once"
            self._received.extend(message.deltas)
        delta = self._received.popleft()
        if delta.progress is None:
            self._replicas.tokens[self._dispatch.replica] += 1
        if delta.finish is not None:
            self._unread -= 1
            if self._unread == 0:
                self._end("ok")
        return delta

    def close(self) -> None:
        self._end("left")

    def fail(self, error: PaddockError) -> None:
        """End it with this error now."""
        self._failure = error
        self._stream.cancel()

    async def _next(self) -> AcceptedBy | Deltas:
        try:
            message: AcceptedBy | Deltas | Failed = _stream_message.decode(await anext(self._stream))
        except PaddockError as error:
            self._end((self._failure or error).code)
            raise self._failure or error from None
        except StopAsyncIteration:
            self._end(PaddockError.code)
            raise PaddockError(
                f"a replica of {self._replicas.name} ended the response without a finish reason"
            ) from None
        if isinstance(message, Failed):
            self._end(message.problem.code)
            raise message.problem.error()
        return message

    def _end(self, outcome: str) -> None:
        if not self._over:
            self._over = True
            if outcome != "ok":
                self._stream.cancel()
            self._replicas.ended(self, self._dispatch.replica, outcome)


def _no_replica(replicas: ClusterReplicas) -> NoReplica:
    count = len(replicas.status())
    return NoReplica(
        f"none of the {count} replicas of {replicas.name} accepted the request within {replicas.wait_timeout:g} s",
        retry_after=10,
    )
