"""The life of all batches: validated, run, ended. `line_runs.py` runs their lines.

One task makes all decisions. Lines are tasks of their own; SQLite and files are used on one thread beside the loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
import structlog

from paddock.batches.active import Active, Counts, Options
from paddock.batches.backend import Backend
from paddock.batches.decisions import Start, decide
from paddock.batches.line_runs import LineRuns
from paddock.batches.preparation import prepare
from paddock.batches.records import Batch, Ending, Mistake, Result, Status, TokenUsage
from paddock.batches.store import Store
from paddock.storage import StoreThread
from paddock.types.windows import is_open

_log = structlog.get_logger(__name__)
_TICK: Final = 1.0
"""Seconds between two looks at the clock, the models and the disk."""
_DISK_PAUSE: Final = 2.0
_ENDED_AT_ONCE = 500
_ORDER: Final[dict[Status, int]] = {"validating": 0, "in_progress": 1, "cancelling": 2, "finalizing": 2}
_NOT_RUN: Final = {
    "expired": ("batch_expired", "the request was not run before the completion window ended"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before the request was run"),
}


class Runner:
    def __init__(
        self,
        store: Store,
        thread: StoreThread,
        backend: Backend,
        options: Options,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns the Unix time."""
        self._store = store
        self._thread = thread
        self._backend = backend
        self._options = options
        self._clock = clock
        self._active: dict[str, Active] = {}
        self._wake = asyncio.Event()
        self._validating: asyncio.Task[None] | None = None
        self._validated = ""
        """The id of the batch that is being validated."""
        self._stopped_validating: set[str] = set()
        self._main: asyncio.Task[None] | None = None
        self._stopping = False
        self._disk_problem: str | None = None
        self._disk_retry = 0.0
        self._swept = 0.0
        self.counts = Counts()
        self._lines = LineRuns(
            store,
            thread,
            backend,
            attempts=options.attempts,
            clock=clock,
            wake=self._wake.set,
            pause=self._pause_for_disk,
        )

    async def start(self) -> None:
        for batch in await self._thread.call(self._store.unfinished):
            self._active[batch.id] = Active(batch)
            _log.info("batch resumed", batch=batch.id, status=batch.status, unanswered=batch.unanswered)
        self._main = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop all lines. They are run again by the next server that uses the folder."""
        self._stopping = True
        tasks = [task for active in self._active.values() for task in active.running.values()]
        self._stopped_validating.update(self._active)
        if self._main is not None:
            self._main.cancel()
            tasks.append(self._main)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._validating is not None:
            await asyncio.gather(self._validating, return_exceptions=True)
        await self._commit_results()

    def update(self, batch: Batch) -> None:
        """A batch is new or was changed from outside."""
        self._set(self._active.setdefault(batch.id, Active(batch)), batch)
        self._wake.set()

    def waiting_for(self, id: str) -> str | None:
        """Why no line of the batch is running, if a reason is known."""
        active = self._active.get(id)
        if active is None or active.batch.status != "in_progress":
            return None
        if self._disk_problem is not None:
            return self._disk_problem
        return None if active.running else active.waiting_for

    def levels(self) -> dict[str, tuple[int, int]]:
        """For each model the lines that wait and those that run."""
        found: dict[str, tuple[int, int]] = {}
        for active in self._active.values():
            if active.batch.model is not None:
                waiting, running = found.get(active.batch.model, (0, 0))
                count = len(active.running)
                found[active.batch.model] = (waiting + active.batch.unanswered - count, running + count)
        return found

    def statuses(self) -> dict[str, int]:
        """How many batches have each status that is not the last one."""
        found: dict[str, int] = dict.fromkeys(_ORDER, 0)
        for active in self._active.values():
            found[active.batch.status] = found.get(active.batch.status, 0) + 1
        return found

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._step()
            except (sqlite3.Error, OSError) as error:
                self._pause_for_disk(error)
            except Exception:
                _log.exception("unexpected error in the batch runner")
                self._disk_retry = self._clock() + _DISK_PAUSE
            try:
                async with asyncio.timeout(_TICK):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _step(self) -> None:
        if self._clock() < self._disk_retry:
            return
        await self._commit_results()
        if self._disk_problem is not None:
            _log.info("the disk can be written again: batches continue")
            self._disk_problem = None
        now = self._clock()
        if now - self._swept > 60:
            self._swept = now
            await self._thread.call(self._store.remove_expired_files, int(now))
        for active in list(self._active.values()):
            await self._advance(active)
        await self._start_lines()

    def _pause_for_disk(self, error: Exception) -> None:
        if self._disk_problem is None:
            _log.error("batches are paused: the data folder cannot be written", error=str(error))
        self._disk_problem = f"the data folder cannot be written: {error}"
        self._disk_retry = self._clock() + _DISK_PAUSE

    async def _advance(self, active: Active) -> None:
        """Let a batch pass to its next status, if it is time."""
        batch = active.batch
        match batch.status:
            case "validating":
                if self._validating is None or self._validating.done():
                    self._validated = batch.id
                    self._validating = asyncio.create_task(self._validate(active))
            case "in_progress":
                if self._clock() >= batch.expires_at:
                    await self._begin_end(active, "expired")
                elif batch.unanswered == 0:
                    await self._begin_end(active, "completed")
                elif active.stop:
                    await self._begin_end(active, "failed")
                else:
                    await self._check_identity(active)
            case "cancelling":
                self._stopped_validating.add(batch.id)
                if batch.ending is None or batch.finalizing_at is None:
                    await self._begin_end(active, "cancelled")
                else:
                    await self._end(active)
            case "finalizing":
                await self._end(active)
            case _:
                self._active.pop(batch.id, None)

    async def _begin_end(self, active: Active, ending: Ending) -> None:
        for task in active.running.values():
            task.cancel()
        now = int(self._clock())
        self._set(active, await self._thread.call(self._store.begin_end, active.batch.id, ending, now, active.stop))
        self._wake.set()

    async def _end(self, active: Active) -> None:
        """Write the lines that were not run, some at a time, then make the files visible."""
        batch = active.batch
        is_validating = self._validated == batch.id and self._validating is not None and not self._validating.done()
        if active.running or active.results or is_validating:
            return  # they end, and wake the loop
        if batch.total and batch.unanswered:
            reason = _NOT_RUN.get(batch.ending or "") or (batch.mistakes[0].code, batch.mistakes[0].message)
            self._set(active, await self._thread.call(self._end_lines, batch, reason))
        else:
            self._set(active, await self._thread.call(self._store.end, batch.id, int(self._clock())))
            self._active.pop(batch.id, None)
            last = active.batch
            _log.info(
                "batch ended", batch=last.id, status=last.status, done=last.output.lines, failed=last.errors.lines
            )
        self._wake.set()

    def _end_lines(self, batch: Batch, reason: tuple[str, str]) -> Batch:
        lines = self._store.waiting(batch.id, limit=_ENDED_AT_ONCE)
        return self._store.add_results(
            batch.id, [Result(line.number, line.custom_id, None, error=reason) for line in lines]
        )

    def _set(self, active: Active, batch: Batch) -> None:
        """Take over a newer state. An operation that began before another was called may return after it."""
        if _ORDER.get(batch.status, 9) >= _ORDER.get(active.batch.status, 9):
            active.batch = batch
        else:
            active.batch = msgspec.structs.replace(
                active.batch, output=batch.output, errors=batch.errors, usage=batch.usage, total=batch.total
            )

    # ── validation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _validate(self, active: Active) -> None:
        batch = active.batch
        try:
            changed = await asyncio.to_thread(
                prepare,
                batch,
                self._store,
                self._thread.wait_for,
                self._backend,
                longest=self._options.longest_body,
                most_waiting=self._options.most_waiting,
                is_stopped=lambda: batch.id in self._stopped_validating,
                now=lambda: int(self._clock()),
            )
        except (sqlite3.Error, OSError) as error:
            self._pause_for_disk(error)
        else:
            if changed is not None:
                self._set(active, changed)
        finally:
            self._wake.set()

    async def _check_identity(self, active: Active) -> None:
        batch, now = active.batch, self._clock()
        if abs(now - active.checked_at) < _TICK:
            return
        active.checked_at = now
        assert batch.model is not None, "set by the validation"
        identity = await self._thread.call(self._backend.identity, batch.model)
        if identity is None or identity == batch.identity:
            return
        if batch.allow_change or self._options.allow_change:
            if not active.warned:
                active.warned = True
                _log.warning("the model of a batch has changed", batch=batch.id, model=batch.model)
            return
        active.stop.append(
            Mistake(
                "model_changed",
                f"the file of the model {batch.model!r} has changed since the batch was created: the rest of the batch "
                "was not run (batches.allow_model_change, --allow-change)",
                "model",
            )
        )
        await self._begin_end(active, "failed")

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _start_lines(self) -> None:
        if self._disk_problem is not None or self._stopping:
            return
        now = datetime.fromtimestamp(self._clock())
        in_window = is_open(self._options.windows, now.hour * 60 + now.minute)
        models: dict[str, list[Active]] = {}
        for active in self._active.values():
            if active.batch.status == "in_progress" and active.batch.model is not None:
                models.setdefault(active.batch.model, []).append(active)
        for model, group in models.items():
            oldest = group[0].batch
            decision = decide(
                self._backend.view(oldest),
                model,
                policy=self._options.may_load,
                in_window=in_window,
                in_flight=self._options.in_flight,
                packed=oldest.endpoint == "/v1/embeddings",
            )
            if isinstance(decision, Start):
                await self._lines.fill(group, decision)
            else:
                for active in group:
                    active.waiting_for = decision.reason

    async def _commit_results(self) -> None:
        for active in list(self._active.values()):
            if not active.results:
                continue
            taken = list(active.results)
            before = active.batch
            batch = await self._thread.call(self._store.add_results, before.id, taken)
            del active.results[: len(taken)]
            for result in taken:
                active.running.pop(result.number, None)
            self._set(active, batch)
            self._count(batch.model or "", taken)

    def _count(self, model: str, ended: Sequence[Result]) -> None:
        counts = self.counts
        for result in ended:
            into = counts.done if result.is_success else counts.failed
            into[model] = into.get(model, 0) + 1
            counts.tokens[model] = counts.tokens.get(model, TokenUsage()) + result.usage
