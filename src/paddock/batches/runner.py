"""Runs the lines of all batches: validates, orders, starts, retries, collects, ends.

One task makes all decisions. Lines are tasks of their own; SQLite and files are used on one thread beside the loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec
import structlog

from paddock.batches.backend import Backend, Reply
from paddock.batches.decisions import Candidate, MayLoad, Start, decide, next_batch, outcome_of
from paddock.batches.preparation import prepare
from paddock.batches.records import Batch, Ending, Line, Mistake, Result, Status, TokenUsage
from paddock.batches.store import Store
from paddock.batches.usage import usage_of
from paddock.storage import StoreThread
from paddock.types.windows import Window, is_open

_log = structlog.get_logger(__name__)
_TICK: Final = 1.0
"""Seconds between two looks at the clock, the models and the disk."""
_LATER: Final = 1.0
"""Seconds until a line is tried again that the server could not run now."""
_DISK_PAUSE: Final = 2.0
_FETCHED = 64
_ENDED_AT_ONCE = 500
_ORDER: Final[dict[Status, int]] = {"validating": 0, "in_progress": 1, "cancelling": 2, "finalizing": 2}
_NOT_RUN: Final = {
    "expired": ("batch_expired", "the request was not run before the completion window ended"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before the request was run"),
}


@dataclass(frozen=True, slots=True)
class Options:
    may_load: MayLoad = "when_idle"
    windows: tuple[Window, ...] = ()
    in_flight: int | None = None
    attempts: int = 3
    allow_change: bool = False
    longest_body: int = 32 * 1024 * 1024
    most_waiting: int = 1_000_000
    """Lines of one owner that are not answered."""


@dataclass(slots=True)
class Counts:
    """Since the start of the server, by model."""

    done: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, TokenUsage] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Active:
    """A batch that has not ended."""

    batch: Batch
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """By the number of the line, until its result is committed."""
    results: list[Result] = field(default_factory=list)
    """Not yet committed."""
    queue: deque[Line] = field(default_factory=deque)
    cursor: int = -1
    """The rank of the last line that was fetched."""
    is_fetched: bool = False
    """All unanswered lines are in the queue, or run."""
    not_before: float = 0.0
    waiting_for: str | None = None
    warned: bool = False
    checked_at: float = 0.0
    """When the files of the model were looked at."""
    stop: list[Mistake] = field(default_factory=list)


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
        self._active: dict[str, _Active] = {}
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

    async def start(self) -> None:
        for batch in await self._thread.call(self._store.unfinished):
            self._active[batch.id] = _Active(batch)
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
        self._set(self._active.setdefault(batch.id, _Active(batch)), batch)
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

    async def _advance(self, active: _Active) -> None:
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

    async def _begin_end(self, active: _Active, ending: Ending) -> None:
        for task in active.running.values():
            task.cancel()
        now = int(self._clock())
        self._set(active, await self._thread.call(self._store.begin_end, active.batch.id, ending, now, active.stop))
        self._wake.set()

    async def _end(self, active: _Active) -> None:
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
        lines = self._store.waiting(batch.id, after=-1, limit=_ENDED_AT_ONCE)
        return self._store.add_results(
            batch.id, [Result(line.number, line.custom_id, None, error=reason) for line in lines]
        )

    def _set(self, active: _Active, batch: Batch) -> None:
        """Take over a newer state. An operation that began before another was called may return after it."""
        if _ORDER.get(batch.status, 9) >= _ORDER.get(active.batch.status, 9):
            active.batch = batch
        else:
            active.batch = msgspec.structs.replace(
                active.batch, output=batch.output, errors=batch.errors, usage=batch.usage, total=batch.total
            )

    # ── validation ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _validate(self, active: _Active) -> None:
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

    async def _check_identity(self, active: _Active) -> None:
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
        models: dict[str, list[_Active]] = {}
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
                await self._fill(group, decision)
            else:
                for active in group:
                    active.waiting_for = decision.reason

    async def _fill(self, group: Sequence[_Active], decision: Start) -> None:
        allowed = [active for active in group if self._is_ready(active)]
        while sum(len(active.running) for active in group) < decision.most:
            for active in allowed:
                await self._fetch(active)
            ready = [active for active in allowed if active.queue and active.batch.status == "in_progress"]
            chosen = next_batch(Candidate(one.batch.id, one.batch.owner, len(one.running)) for one in ready)
            if chosen is None:
                return
            active = self._active[chosen.id]
            line = active.queue.popleft()
            active.waiting_for = None
            active.running[line.number] = asyncio.create_task(self._run_line(active, line, load=decision.load))

    def _is_ready(self, active: _Active) -> bool:
        if (reason := self._backend.may_run(active.batch)) is not None:
            active.waiting_for = reason
            return False
        return self._clock() >= active.not_before

    async def _fetch(self, active: _Active) -> None:
        if active.queue or active.is_fetched:
            return
        lines = await self._thread.call(self._store.waiting, active.batch.id, after=active.cursor, limit=_FETCHED)
        active.is_fetched = len(lines) < _FETCHED
        if lines:
            active.cursor = lines[-1].rank
            active.queue.extend(lines)

    async def _run_line(self, active: _Active, line: Line, *, load: bool) -> None:
        """Ends with a result, or with the line back in the queue."""
        has_result = False
        try:
            data = await self._thread.call(self._store.read_line, active.batch, line)
            body = bytes(msgspec.json.decode(data, type=dict[str, msgspec.Raw])["body"])
            reply = await self._backend.run(active.batch, line, body, load=load)
            has_result = await self._take(active, line, reply)
        except (EOFError, FileNotFoundError) as error:
            active.results.append(Result(line.number, line.custom_id, None, error=("input_lost", str(error))))
            has_result = True
        except (sqlite3.Error, OSError) as error:
            self._pause_for_disk(error)
            active.queue.appendleft(line)
        except asyncio.CancelledError:
            active.queue.appendleft(line)
            raise
        except Exception:
            _log.exception("unexpected error in a line of a batch", batch=active.batch.id, line=line.number)
            has_result = await self._take(
                active, line, Reply(500, b"", code="internal_error", message="internal error")
            )
        finally:
            if not has_result:
                active.running.pop(line.number, None)
            self._wake.set()

    async def _take(self, active: _Active, line: Line, reply: Reply) -> bool:
        """Whether the reply is the line's result. Otherwise the line waits again."""
        match outcome_of(reply.status, reply.code, line.attempts, self._options.attempts):
            case "done" | "failed" if reply.body:
                active.results.append(
                    Result(
                        line.number,
                        line.custom_id,
                        reply.body,
                        reply.status,
                        reply.request_id,
                        usage=usage_of(reply.body) if reply.status < 300 else TokenUsage(),
                    )
                )
                return True
            case "done" | "failed":
                error = (reply.code or "no_response", reply.message or "the request had no response")
                active.results.append(Result(line.number, line.custom_id, None, error=error))
                return True
            case "again":
                await self._thread.call(self._store.add_attempt, active.batch.id, line.number)
                active.queue.appendleft(msgspec.structs.replace(line, attempts=line.attempts + 1))
            case _:
                pause = _LATER if reply.retry_after is None else min(reply.retry_after, 60.0)
                active.not_before = self._clock() + pause
                active.waiting_for = reply.message
                active.queue.appendleft(line)
                asyncio.get_running_loop().call_later(pause, self._wake.set)
        return False

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
