"""A replica on a node: one model with a worker of its own, asked through Ray."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec
from ray import serve

from paddock import logs
from paddock.cluster.replicas import Answer, Failed, Taken, Told, encode
from paddock.config import Settings
from paddock.errors import ModelLoadFailed, PaddockError
from paddock.fleet import Lifecycle, Machine, Rules, has_gpu, llamacpp_levels, llamacpp_totals, open_catalogue
from paddock.fleet.process.attempt import Attempt
from paddock.fleet.process.worker import WorkerProcess
from paddock.types import GenerateRequest, PoolRequest, TextQuestion
from paddock.wire import Delta, Problem, Slots

_MOST_FAILURES = 3
_MESSAGES = 100
"""In a second, of all answers of a replica together, as long as none waits longer than ..."""
_LONGEST = 0.1
"""... so many seconds."""

_request = msgspec.msgpack.Decoder(GenerateRequest)
_pool_request = msgspec.msgpack.Decoder(PoolRequest)
_question = msgspec.msgpack.Decoder(TextQuestion)


class Engine:
    """Ray makes one for each replica, has it placed on a node, and asks now and then how it is.

    A crash of native code ends the worker alone, which is started anew as on a single machine. What goes wrong is told
    as a message, so that nothing but the loss of this process is an error of Ray's.
    """

    async def __init__(self, settings: dict[str, Any], name: str, digest: str) -> None:  # type: ignore[misc]
        self._digest = digest
        self._answering = 0
        said = Settings.model_validate(settings)
        logs.configure(level=said.server.log_level, form=said.server.log_format, disabled=said.server.log_disable)
        manager = said.model_manager
        model = open_catalogue(manager).named(name)
        self._model = replace(model, pinned=True, replicas=(), idle_timeout=0)
        self._lifecycle = Lifecycle([self._model], Rules.of(manager), Machine(), gpu=has_gpu())
        worker = await self._worker()
        if worker.info is None:
            raise ModelLoadFailed(f"{name} was loaded and says nothing of itself")
        self._info = worker.info
        self.replica = serve.get_replica_context().replica_id.unique_id

    # ── what gateways ask ────────────────────────────────────────────────────────────────────────────────────────────

    async def generate(self, chain: tuple[int, ...], request: bytes) -> AsyncGenerator[bytes]:
        """`chain` is for the router, which has chosen this replica by it."""
        attempt = None
        try:
            worker = await self._worker()
            attempt = worker.generate(_request.decode(request))
            await attempt.accepted()
            yield encode(
                Taken(self.replica, attempt.fingerprint, attempt.n_ctx, attempt.prompt_tokens, attempt.prompt or None)
            )
            async for deltas in self._in_portions(attempt):
                yield encode(Told(deltas))
        except PaddockError as error:
            yield encode(Failed(Problem.of(error)))
        finally:
            if attempt is not None:
                attempt.close()

    async def _in_portions(self, attempt: Attempt) -> AsyncGenerator[list[Delta]]:
        """A message costs Ray about as much as some small models need for a token, whatever is in it. The first of an
        answer comes at once; then each waits for others, the longer the more answers there are beside it.
        """
        due = 0.0
        self._answering += 1
        try:
            async for delta in attempt:
                if delta.finish is None and (early := due - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                yield [delta, *attempt.received()]
                due = time.monotonic() + min(_LONGEST, self._answering / _MESSAGES)
        finally:
            self._answering -= 1

    async def ask(self, question: bytes) -> bytes:
        try:
            worker = await self._worker()
            return encode(await worker.ask(_question.decode(question)))
        except PaddockError as error:
            return encode(Failed(Problem.of(error)))

    async def pool(self, request: bytes) -> bytes:
        try:
            worker = await self._worker()
            return encode(await worker.pool(_pool_request.decode(request), lambda _: None))
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
        """Of what it was deployed with."""
        return self._digest

    async def describe(self) -> bytes:
        return encode(self._info)

    # ── what Ray asks ────────────────────────────────────────────────────────────────────────────────────────────────

    async def record_replica_metadata(self) -> dict[str, Any]:
        """What stays the same: every gateway has it of every replica."""
        return {
            "fingerprint": self._info.fingerprint,
            "slots": self._info.n_slots,
            "engine": self._info.engine,
        }

    async def record_routing_stats(self) -> dict[str, Any]:
        """What changes, every few seconds."""
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
        """Raises where a new replica is the better cure: its worker has failed again and again."""
        status = self._lifecycle.status(self._model.name)
        if status.failures > _MOST_FAILURES:
            raise ModelLoadFailed(f"{self._model.name} failed {status.failures} times: {status.failure}")

    async def __del__(self) -> None:
        if hasattr(self, "_lifecycle"):  # else there was nothing to serve
            await self._lifecycle.close()

    async def _worker(self) -> WorkerProcess:
        return await self._lifecycle.ensure_loaded(self._model.name)
