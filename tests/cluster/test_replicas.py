"""Requests to replicas on a cluster, over a fake link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from paddock.cluster.replicas import AcceptedBy, ClusterReplicas, Deltas, Failed, encode
from paddock.errors import (
    ContextLengthExceeded,
    NoReplica,
    NotSupported,
    PaddockError,
    QueueFull,
    ReplicaLost,
    ServerStopping,
)
from paddock.fleet.requests.generation import Generation
from paddock.fleet.requests.request_record import RequestRecord
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.routing import Load
from paddock.types import GenerateRequest, ModelInfo, Origin, TextPrompt, Usage
from paddock.wire.messages import Delta, Problem

_ACCEPTED = AcceptedBy("one", "fp", 512, prompt_tokens=3)
_HELLO = [Delta(0, "Hel"), Delta(0, "lo", finish="stop", usage=Usage(3, 2, 0))]
Script = list[Any]
"""The messages of one response in order. An error is raised; after None nothing arrives."""


class FakeLink:
    """A link that answers each request with the next script."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.cancelled = 0
        self.chains: list[tuple[int, ...]] = []

    def generate(self, chain: tuple[int, ...], request: bytes, *, is_batch: bool) -> FakeStream:
        self.chains.append(chain)
        return FakeStream(self, self.scripts.pop(0))

    async def call(self, method: str, *arguments: Any) -> bytes:
        if method == "describe":
            return encode(ModelInfo("", 512, 512, 1, 1, 1, n_slots=2))
        return encode(Failed(Problem.of(ContextLengthExceeded("too long", param="content"))))

    async def call_all(self, method: str) -> list[bytes]:
        return []

    def seen(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(name, "ray", "ready", "llama.cpp", "1", Load(0, 0, 4)) for name in ("one", "two")]

    def held(self, chain: tuple[int, ...]) -> dict[str, int]:
        return {"one": len(chain)} if chain in self.chains else {}


class FakeStream:
    def __init__(self, link: FakeLink, script: Script) -> None:
        self._link, self._script = link, script
        self._cancelled = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._script:
            raise StopAsyncIteration
        message = self._script.pop(0)
        if message is None:
            await self._cancelled.wait()
            raise ReplicaLost("cancelled")
        if isinstance(message, PaddockError):
            raise message
        return encode(message)

    def cancel(self) -> None:
        self._link.cancelled += 1
        self._cancelled.set()


REQUEST = GenerateRequest(TextPrompt("Say hello"), max_tokens=8)


def _generation(replicas: ClusterReplicas, records: list[RequestRecord]) -> Generation:
    record = RequestRecord("m", "generation", Origin(), records.append)
    return Generation(REQUEST, replicas.dispatch(REQUEST), record)


def _run(
    check: Callable[[ClusterReplicas, list[RequestRecord]], Any], link: FakeLink, wait_timeout: float = 60
) -> None:
    async def run() -> None:
        replicas = ClusterReplicas("m", link, wait_timeout=wait_timeout)
        try:
            await check(replicas, [])
        finally:
            await replicas.close()

    asyncio.run(run())


def test_a_response_is_counted_for_its_replica() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        assert (generation.replica, generation.prompt_tokens, generation.fingerprint) == ("one", 3, "fp")
        assert "".join([delta.text async for delta in generation]) == "Hello"
        generation.close()
        (status, other) = replicas.status()
        assert (status.tokens, dict(status.outcomes), other.tokens) == (2, {"ok": 1}, 0)
        assert records[0].replica == "one"

        (span,) = replicas.prefixes()
        assert (span.text, span.held) == ("Say hello", {"one": 1.0})

    link = FakeLink([_ACCEPTED, Deltas(_HELLO)])
    _run(check, link)
    assert link.chains[0], "the router needs it"


def test_a_replica_lost_before_the_first_token_is_replaced() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        assert [delta.text async for delta in generation] == ["Hel", "lo"]
        assert generation.replica == "two"
        assert replicas.retried["one"] == 1

    _run(
        check,
        FakeLink([_ACCEPTED, ReplicaLost("gone")], [msgspec.structs.replace(_ACCEPTED, replica="two"), Deltas(_HELLO)]),
    )


def test_a_replica_lost_after_the_first_token_is_an_error() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        assert (await anext(generation)).text == "Hel"
        with pytest.raises(ReplicaLost):
            await anext(generation)

    _run(check, FakeLink([_ACCEPTED, Deltas(_HELLO[:1]), ReplicaLost("gone")]))


def test_two_lost_replicas_end_the_request() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        with pytest.raises(ReplicaLost):
            await _generation(replicas, records).begin()

    link = FakeLink([ReplicaLost("gone")], [ReplicaLost("gone")], [_ACCEPTED])
    _run(check, link)
    assert len(link.scripts) == 1


def test_retries() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        with pytest.raises(ContextLengthExceeded) as refused:
            await _generation(replicas, records).begin()
        assert refused.value.param == "prompt"

    wrong = Failed(Problem.of(ContextLengthExceeded("too long", param="prompt")))
    link = FakeLink([QueueFull("full")], [_ACCEPTED, Deltas(_HELLO)], [wrong], [_ACCEPTED])
    _run(check, link)
    assert len(link.scripts) == 1


def test_wait_timeout() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        with pytest.raises(NoReplica, match="none of the 2 replicas of m accepted the request"):
            await _generation(replicas, records).begin()

    _run(check, FakeLink([None], [None], [None]), wait_timeout=0.01)


def test_close_cancels_the_request() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        generation.close()
        generation.close()
        assert replicas.status()[0].outcomes == {"left": 1}

    link = FakeLink([_ACCEPTED, None])
    _run(check, link)
    assert link.cancelled == 1


def test_stop_fails_unfinished_requests() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        reading = asyncio.ensure_future(anext(generation))
        await asyncio.sleep(0)
        await replicas.stop(grace=0)
        with pytest.raises(ServerStopping):
            await reading
        with pytest.raises(ServerStopping):
            await _generation(replicas, records).begin()

    _run(check, FakeLink([_ACCEPTED, None]))


def test_an_incomplete_response_is_an_error() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        generation = _generation(replicas, records)
        await generation.begin()
        with pytest.raises(PaddockError, match="without a finish reason"):
            [delta async for delta in generation]

    _run(check, FakeLink([_ACCEPTED, Deltas(_HELLO[:1])]))


def test_drain_is_not_supported() -> None:
    async def check(replicas: ClusterReplicas, records: list[RequestRecord]) -> None:
        with pytest.raises(NotSupported):
            await replicas.drain("one")
        with pytest.raises(NotSupported):
            replicas.undrain("one")
        replicas.start()
        for _ in range(3):  # let the started task run
            await asyncio.sleep(0)
        assert replicas.info is not None
        assert replicas.info.n_slots == 8

    _run(check, FakeLink())
