"""A replica on a cluster node: one model with its own worker, called through Ray."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
from ray import serve

from paddock import logs
from paddock.cluster.replicas import AcceptedBy, Answer, Deltas, Failed, encode
from paddock.config import Settings
from paddock.errors import ModelLoadFailed, PaddockError
from paddock.fleet import (
    FileDigests,
    Lifecycle,
    Machine,
    Rules,
    has_gpu,
    identity_of,
    llamacpp_levels,
    llamacpp_totals,
    open_catalogue,
)
from paddock.fleet.process.attempt import Attempt
from paddock.fleet.process.worker import WorkerProcess
from paddock.types import GenerateRequest, PoolRequest, TextQuestion
from paddock.wire.messages import Delta, Problem, Slots

_MOST_FAILURES = 3
_MESSAGES_PER_SECOND = 100
"""The target rate of stream messages of a replica."""
_MAX_DELAY = 0.1
"""Seconds that a delta waits at most to be sent with others."""

_request = msgspec.msgpack.Decoder(GenerateRequest)
_pool_request = msgspec.msgpack.Decoder(PoolRequest)
_question = msgspec.msgpack.Decoder(TextQuestion)


class Engine:
    """Ray creates one per replica, places it on a node and checks its health.

    A native crash ends only the worker, which is restarted as on a single machine. Errors are sent as messages, so that
    an exception from Ray always means the loss of this process.
    """

    async def __init__(self, settings: dict[str, Any], name: str, digest: str) -> None:  # type: ignore[misc]
        self._digest = digest
        self._streams = 0
        self._digests = FileDigests()
        configured = Settings.model_validate(settings)
        logs.configure(
            level=configured.server.log_level, form=configured.server.log_format, disabled=configured.server.log_disable
        )
        manager = configured.model_manager
        model = open_catalogue(manager).named(name)
        self._model = replace(model, replicas=(), settings=model.settings.model_copy(update={"pinned": True}))
        self._lifecycle = Lifecycle([self._model], Rules.of(manager), Machine(), gpu=has_gpu())
        worker = await self._worker()
        if worker.info is None:
            raise ModelLoadFailed(f"{name} was loaded without any info")
        self._info = worker.info
        self.replica = serve.get_replica_context().replica_id.unique_id

    # ── called by gateways ────────────────────────────────────────────────────────────────────────────────────────────

    async def generate(self, chain: tuple[int, ...], request: bytes, is_batch: bool) -> AsyncGenerator[bytes]:
        """`chain` and `is_batch` are for the router, which chose this replica by them."""
        attempt = None
        try:
            worker = await self._worker()
            attempt = worker.generate(_request.decode(request))
            await attempt.accepted()
            yield encode(
                AcceptedBy(
                    self.replica, attempt.fingerprint, attempt.n_ctx, attempt.prompt_tokens, attempt.prompt or None
                )
            )
            async for deltas in self._batched(attempt):
                yield encode(Deltas([await self._with_identity(delta, attempt) for delta in deltas]))
        except PaddockError as error:
            yield encode(Failed(Problem.of(error)))
        finally:
            if attempt is not None:
                attempt.close()

    async def _with_identity(self, delta: Delta, attempt: Attempt) -> Delta:
        """The gateway makes the receipt, and may be on another node: it cannot know this one."""
        if delta.usage is None or (facts := delta.usage.receipt) is None or attempt.worker_info is None:
            return delta
        identity = await identity_of(
            attempt.worker_info, self._digests, fingerprint=attempt.fingerprint, adapters=attempt.adapters
        )
        told = msgspec.structs.replace(facts, identity=msgspec.to_builtins(identity))
        return msgspec.structs.replace(delta, usage=msgspec.structs.replace(delta.usage, receipt=told))

    async def _batched(self, attempt: Attempt) -> AsyncGenerator[list[Delta]]:
        """A Ray message costs about as much as a token of a small model. The first delta is sent at once; later ones
        are batched, with a longer delay if there are more streams.
        """
        due = 0.0
        self._streams += 1
        try:
            async for delta in attempt:
                if delta.finish is None and (early := due - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                yield [delta, *attempt.received()]
                due = time.monotonic() + min(_MAX_DELAY, self._streams / _MESSAGES_PER_SECOND)
        finally:
            self._streams -= 1

    async def ask(self, question: bytes) -> bytes:
        return await self._reply(lambda worker: worker.ask(_question.decode(question)))

    async def pool(self, request: bytes) -> bytes:
        return await self._reply(lambda worker: worker.pool(_pool_request.decode(request), lambda _: None))

    async def _reply(self, ask: Callable[[WorkerProcess], Awaitable[Answer]]) -> bytes:
        try:
            return encode(await ask(await self._worker()))
        except PaddockError as error:
            return encode(Failed(Problem.of(error)))

    async def slots(self) -> bytes:
        worker = self._lifecycle.worker(self._model.name)
        try:
            answer: Answer = Slots(0, await worker.slots() if worker is not None else [], 0)
        except PaddockError as error:
            answer = Failed(Problem.of(error))
        return encode(answer)

    async def digest(self) -> str:
        """The digest of its settings."""
        return self._digest

    async def describe(self) -> bytes:
        return encode(self._info)

    # ── called by Ray ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Constant values; every gateway gets them from every replica."""
        return {
            "fingerprint": self._info.fingerprint,
            "slots": self._info.n_slots,
            "engine": self._info.engine,
        }

    async def record_routing_stats(self) -> dict[str, Any]:
        """Changing values, read every few seconds."""
        status = self._lifecycle.status(self._model.name)
        record = self._lifecycle.records.of(self._model.name)
        return {
            "pid": os.getpid(),
            "running": status.running,
            "waiting": status.waiting,
            "failure": status.failure,
            "numbers": llamacpp_levels(status, record, time.monotonic()) | llamacpp_totals(record),
        }

    async def check_health(self) -> None:
        """Raises after repeated failures of its worker, so that Ray replaces the replica."""
        status = self._lifecycle.status(self._model.name)
        if status.failures > _MOST_FAILURES:
            raise ModelLoadFailed(f"{self._model.name} failed {status.failures} times: {status.failure}")

    async def __del__(self) -> None:
        if hasattr(self, "_lifecycle"):  # else the constructor failed
            await self._lifecycle.close()

    async def _worker(self) -> WorkerProcess:
        return await self._lifecycle.ensure_loaded(self._model.name)
