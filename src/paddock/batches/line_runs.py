"""Runs single lines: fetches them in their order, starts as many as may run, and decides what follows from a reply."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from paddock.batches.active import Active
from paddock.batches.backend import Backend, Reply
from paddock.batches.decisions import Candidate, Start, next_batch, outcome_of
from paddock.batches.parts import Part, Parts
from paddock.batches.records import Line, Result, TokenUsage
from paddock.batches.store import Store
from paddock.batches.usage import usage_of
from paddock.storage import StoreThread

_log = structlog.get_logger(__name__)
_LATER: Final = 1.0
"""Seconds until a line is tried again that the server could not run now."""
_FETCHED = 64


class LineRuns:
    """Every line that is started ends with a result in its batch, or back in the queue of its batch."""

    def __init__(
        self,
        store: Store,
        thread: StoreThread,
        backend: Backend,
        *,
        attempts: int,
        clock: Callable[[], float],
        wake: Callable[[], None],
        pause: Callable[[Exception], None],
    ) -> None:
        """`wake` lets the runner look at its batches. `pause` is called if the disk cannot be used."""
        self._store = store
        self._thread = thread
        self._backend = backend
        self._attempts = attempts
        self._clock = clock
        self._wake = wake
        self._pause = pause

    async def fill(self, group: Sequence[Active], decision: Start) -> None:
        """Start lines of these batches of one model, as many as may run."""
        allowed = [active for active in group if self._is_ready(active)]
        while sum(len(active.running) for active in group) < decision.most:
            ready: dict[str, tuple[Active, Part]] = {}
            for active in allowed:
                part = await self._next_part(active, decision.replicas)
                if part is not None and active.batch.status == "in_progress":
                    ready[active.batch.id] = active, part
            candidates = (Candidate(id, one.batch.owner, len(one.running)) for id, (one, _) in ready.items())
            chosen = next_batch(candidates)
            if chosen is None:
                return
            active, part = ready[chosen.id]
            line = part.queue.popleft()
            part.running += 1
            active.waiting_for = None
            task = asyncio.create_task(self._run_line(active, part, line, load=decision.load))
            active.running[line.number] = task
            task.add_done_callback(partial(self._put_back, active, part, line))

    def _put_back(self, active: Active, part: Part, line: Line, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step runs nothing, not even its end."""
        if task.cancelled() and active.running.get(line.number) is task:
            part.queue.appendleft(line)
            self._leave(active, part, line)

    def _leave(self, active: Active, part: Part, line: Line, *, has_result: bool = False) -> None:
        part.running -= 1
        if not has_result:
            active.running.pop(line.number, None)
        self._wake()

    def _is_ready(self, active: Active) -> bool:
        if (reason := self._backend.may_run(active.batch)) is not None:
            active.waiting_for = reason
            return False
        return self._clock() >= active.not_before

    async def _next_part(self, active: Active, replicas: int) -> Part | None:
        """The part from which the next line of a batch comes, with its lines; None: no line waits."""
        parts = active.parts = active.parts or Parts(active.batch.total)
        parts.share_out(replicas)
        for part in parts:
            while not part.queue and not part.is_fetched:
                lines = await self._thread.call(
                    self._store.waiting, active.batch.id, begin=part.next, end=part.end, limit=_FETCHED
                )
                part.add(lines, is_all=len(lines) < _FETCHED)
        return parts.next()

    async def _run_line(self, active: Active, part: Part, line: Line, *, load: bool) -> None:
        """Ends with a result, or with the line back in the queue."""
        has_result = False
        try:
            try:
                data = await self._thread.call(self._store.read_line, active.batch, line)
                body = bytes(msgspec.json.decode(data, type=dict[str, msgspec.Raw])["body"])
                reply = await self._backend.run(active.batch, line, body, load=load)
                has_result = await self._take(active, part, line, reply)
            except (EOFError, OSError, sqlite3.Error):
                raise
            except Exception:
                _log.exception("unexpected error in a line of a batch", batch=active.batch.id, line=line.number)
                reply = Reply(500, b"", code="internal_error", message="internal error")
                has_result = await self._take(active, part, line, reply)
        except (EOFError, FileNotFoundError) as error:
            active.results.append(Result(line.number, line.custom_id, None, error=("input_lost", str(error))))
            has_result = True
        except (sqlite3.Error, OSError) as error:
            self._pause(error)
            part.queue.appendleft(line)
        except asyncio.CancelledError:
            part.queue.appendleft(line)
            raise
        finally:
            self._leave(active, part, line, has_result=has_result)

    async def _take(self, active: Active, part: Part, line: Line, reply: Reply) -> bool:
        """Whether the reply is the line's result. Otherwise the line waits again."""
        match outcome_of(reply.status, reply.code, line.attempts, self._attempts):
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
                part.queue.appendleft(msgspec.structs.replace(line, attempts=line.attempts + 1))
            case _:
                pause = _LATER if reply.retry_after is None else min(reply.retry_after, 60.0)
                active.not_before = self._clock() + pause
                active.waiting_for = reply.message
                part.queue.appendleft(line)
                asyncio.get_running_loop().call_later(pause, self._wake)
        return False
