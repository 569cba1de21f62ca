"""The runner with a server that answers as the test says, and a clock that the test sets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from paddock.batches.active import Active, Options
from paddock.batches.backend import Reply
from paddock.batches.decisions import ModelView, Start
from paddock.batches.line_runs import LineRuns
from paddock.batches.records import Batch, Failure, Line, NewBatch, Result
from paddock.batches.results import failure_of
from paddock.batches.service import Batches, Page, Quotas
from paddock.batches.validation import Check, Checked
from paddock.storage import DataFolder
from paddock.types.windows import Window

_URL = "/v1/chat/completions"


class FakeServer:
    """A backend whose replies are given by the custom_id."""

    def __init__(self, reply: Callable[[str, int], Reply | None]) -> None:
        """`reply` gets the custom_id and how often it has been run; None: it never ends."""
        self._reply = reply
        self.runs: dict[str, int] = {}
        self.running = 0
        self.most_running = 0
        self.stopped = 0
        self.model = ModelView(slots=2)

    def view(self, batch: Batch) -> ModelView:
        return self.model

    def may_run(self, batch: Batch) -> str | None:
        return None

    def identity(self, model: str) -> str | None:
        return "same"

    def check(self, batch: Batch) -> Check:
        return lambda body: Checked("m", body)

    async def run(self, batch: Batch, line: Line, body: bytes, *, load: bool) -> Reply:
        self.runs[line.custom_id] = self.runs.get(line.custom_id, 0) + 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            reply = self._reply(line.custom_id, self.runs[line.custom_id])
            return reply if reply is not None else await asyncio.Future()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        finally:
            self.running -= 1


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ok(*_: object) -> Reply:
    return Reply(200, b'{"usage":{"prompt_tokens":3,"completion_tokens":2}}', "req_1")


def with_batches(
    folder: Path, server: FakeServer, during: Callable[[Batches, Clock], Awaitable[Batch]], options: Options | None
) -> Batch:
    async def life() -> Batch:
        clock = Clock()
        batches = Batches(DataFolder(folder), server, options or Options(), Quotas(), clock=clock)
        try:
            return await during(batches, clock)
        finally:
            await batches.close()

    return asyncio.run(asyncio.wait_for(life(), 60))


def run(
    folder: Path,
    server: FakeServer,
    ids: list[str],
    during: Callable[[Batches, Clock, Batch], Any] = ok,
    *,
    options: Options | None = None,
    begin: float = 1000.0,
    after: Callable[[Batches, Clock, Batch], Awaitable[None]] | None = None,
    **fields: Any,
) -> Batch:
    """The batch of these lines when it has ended. `during` is called when it has been created, `after` at its end."""

    async def life(batches: Batches, clock: Clock) -> Batch:
        clock.now = begin
        upload = await batches.upload("")
        for id in ids:
            line = {"custom_id": id, "method": "POST", "url": _URL, "body": {"n": id}}
            await upload.write(json.dumps(line).encode() + b"\n")
        file = await upload.finish("in.jsonl")
        given: dict[str, Any] = {"window": "1h", "seconds": 3600} | fields
        new = NewBatch(dialect="openai", endpoint=_URL, input_file=file.id, **given)
        batch = await batches.create("", new)
        while not batch.has_ended:
            await asyncio.sleep(0.002)
            batch = await batches.batch("", batch.id, "openai")
            result = during(batches, clock, batch)
            if asyncio.iscoroutine(result):
                await result
        if after is not None:
            await after(batches, clock, batch)
        return batch

    return with_batches(folder, server, life, options)


def lines_of(folder: Path, file: str) -> dict[str, dict[str, Any]]:
    path = folder / "files" / file
    return (
        {line["custom_id"]: line for line in map(json.loads, path.read_bytes().splitlines())} if path.exists() else {}
    )


def test_a_bounded_number_of_lines_run_at_once(tmp_path: Path) -> None:
    server = FakeServer(ok)
    batch = run(tmp_path, server, [f"id-{n}" for n in range(300)])
    assert (batch.status, batch.output.lines, batch.usage.input) == ("completed", 300, 900)
    assert server.most_running <= 4
    assert set(server.runs.values()) == {1}


def test_a_line_is_run_again_after_a_crash_a_few_times(tmp_path: Path) -> None:
    crash = Reply(503, b'{"error":{}}', code="worker_crashed")
    server = FakeServer(lambda id, runs: crash if id == "bad" or (id == "once" and runs == 1) else ok())
    batch = run(tmp_path, server, ["good", "once", "bad"])
    assert server.runs == {"good": 1, "once": 2, "bad": 3}
    assert lines_of(tmp_path, batch.output_file).keys() == {"good", "once"}
    assert lines_of(tmp_path, batch.error_file)["bad"]["response"]["status_code"] == 503


def test_a_line_waits_while_the_server_cannot_run_it(tmp_path: Path) -> None:
    later = Reply(429, b"{}", code="rate_limit_exceeded", retry_after=0.0)
    server = FakeServer(lambda id, runs: later if runs < 20 else ok())
    batch = run(tmp_path, server, ["a"])
    assert (batch.status, server.runs) == ("completed", {"a": 20})


def test_lines_that_were_not_run_in_time_are_in_the_error_file(tmp_path: Path) -> None:
    server = FakeServer(lambda id, _: ok() if id == "a" else None)

    def late(batches: Batches, clock: Clock, batch: Batch) -> None:
        if batch.output.lines == 1:
            clock.now = batch.expires_at

    batch = run(tmp_path, server, ["a", "b", "c"], late)
    assert (batch.status, batch.expired_at, batch.not_run) == ("expired", batch.expires_at, 2)
    assert server.stopped == 2
    assert lines_of(tmp_path, batch.output_file).keys() == {"a"}
    errors = lines_of(tmp_path, batch.error_file)
    assert {id: line["error"]["code"] for id, line in errors.items()} == dict.fromkeys("bc", "batch_expired")


def test_a_line_that_is_cancelled_before_it_runs_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = LineRuns.fill
    cancelled: list[asyncio.Task[None]] = []

    async def fill_and_cancel(self: LineRuns, group: Sequence[Active], decision: Start) -> None:
        await fill(self, group, decision)
        for task in [task for active in group for task in active.running.values()]:
            if len(cancelled) < 8 and task.cancel():
                cancelled.append(task)

    monkeypatch.setattr(LineRuns, "fill", fill_and_cancel)
    server = FakeServer(ok)
    batch = run(tmp_path, server, [f"id-{n}" for n in range(20)])
    assert (batch.status, batch.output.lines) == ("completed", 20)
    assert cancelled
    assert server.stopped < len(cancelled), "some had not begun"


def test_an_unexpected_exception_fails_its_line_alone(tmp_path: Path) -> None:
    def reply(id: str, runs: int) -> Reply:
        if id == "bad":
            raise RuntimeError("a mistake in the server")
        return ok()

    batch = run(tmp_path, FakeServer(reply), ["a", "bad"])
    assert batch.status == "completed"
    assert lines_of(tmp_path, batch.error_file)["bad"]["error"]["code"] == "internal_error"


def test_cancelling_a_batch_that_is_validated(tmp_path: Path) -> None:
    async def cancel(batches: Batches, clock: Clock, batch: Batch) -> None:
        await batches.cancel("", batch.id, "openai")

    batch = run(tmp_path, FakeServer(lambda *_: None), [f"id-{n}" for n in range(3000)], cancel)
    assert batch.status == "cancelled"
    assert batch.errors.lines == batch.total


def test_the_first_failures_are_known_while_the_batch_runs(tmp_path: Path) -> None:
    body = json.dumps({"error": {"message": "too long " + "x" * 1000, "type": "t", "code": "too_long"}}).encode()
    seen: list[Batch] = []

    def reply(id: str, runs: int) -> Reply | None:
        return None if id == "endless" else Reply(400, body, "req_1", code="too_long")

    async def cancel(batches: Batches, clock: Clock, batch: Batch) -> None:
        if batch.errors.lines == 9 and not seen:
            seen.append(batch)
            await batches.cancel("", batch.id, "openai")

    batch = run(tmp_path, FakeServer(reply), ["endless", *(f"id-{n}" for n in range(9))], cancel)
    assert seen[0].status == "in_progress"
    assert len(seen[0].first_failures) == 5
    first = seen[0].first_failures[0]
    assert (first.custom_id, first.code, first.status, len(first.message)) == ("id-0", "too_long", 400, 300)
    assert batch.first_failures == seen[0].first_failures


def test_lines_that_were_not_run_are_no_failures(tmp_path: Path) -> None:
    async def cancel(batches: Batches, clock: Clock, batch: Batch) -> None:
        await batches.cancel("", batch.id, "openai")

    batch = run(tmp_path, FakeServer(lambda *_: None), ["a", "b"], cancel)
    assert (batch.status, batch.first_failures) == ("cancelled", ())


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Result(1, "a", None, error=("input_lost", "gone")), Failure("a", "input_lost", "gone")),
        (
            Result(1, "a", b'{"type":"error","error":{"type":"api_error","message":"no"}}', 500),
            Failure("a", "api_error", "no", 500),
        ),
        (Result(1, "a", b"<html>", 502), Failure("a", "error", "", 502)),
    ],
)
def test_a_failure_is_read_from_any_reply(result: Result, expected: Failure) -> None:
    assert failure_of(result) == expected


def test_lines_run_when_a_window_opens(tmp_path: Path) -> None:
    noon = datetime(2026, 1, 5, 12, 0).timestamp()
    server = FakeServer(ok)

    def look(batches: Batches, clock: Clock, batch: Batch) -> None:
        if "batches.windows" in (batches.waiting_for(batch.id) or ""):
            assert server.runs == {}
            clock.now = noon + 10.5 * 3600

    options = Options(windows=(Window.parse("22:00-06:00"),))
    batch = run(tmp_path, server, ["a"], look, options=options, begin=noon, seconds=86400)
    assert (batch.status, batch.completed_at) == ("completed", noon + 10.5 * 3600)


def test_a_model_is_loaded_when_no_other_is_in_use(tmp_path: Path) -> None:
    server = FakeServer(ok)
    server.model = ModelView(loaded=False, others_busy=True)

    def look(batches: Batches, clock: Clock, batch: Batch) -> None:
        if "another model is in use" in (batches.waiting_for(batch.id) or ""):
            assert server.runs == {}
            server.model = ModelView(loaded=False)

    assert run(tmp_path, server, ["a", "b"], look).status == "completed"
    assert server.most_running == 1, "the first line loads it"


def test_results_are_deleted_when_they_expire(tmp_path: Path) -> None:
    async def later(batches: Batches, clock: Clock, batch: Batch) -> None:
        kept = await batches.file("", batch.output_file)
        assert kept.expires_at == (batch.completed_at or 0) + 7200
        assert (tmp_path / "files" / batch.output_file).exists()
        clock.now = kept.expires_at
        left = [batch.output_file]
        while batch.output_file in left:
            await asyncio.sleep(0.01)
            left = [file.id for file in (await batches.files("", Page(), None))[0]]
        assert left == [batch.input_file], "the input is kept"
        assert not (tmp_path / "files" / batch.output_file).exists()

    batch = run(tmp_path, FakeServer(ok), ["a"], after=later, keep_results=7200)
    assert batch.status == "completed"
