"""Counters across worker restarts."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.lifecycle.records import ModelRecord
from paddock.fleet.requests.request_record import RequestRecord
from paddock.tally import Histogram, Tally
from paddock.types import Origin, Timings, Usage
from paddock.wire.messages import Delta


class _Worker:
    """Counts, reports now and then, and may crash before a report."""

    def __init__(self) -> None:
        self.unreported = Tally()

    def work(self, amount: int) -> None:
        self.unreported.generated_tokens += amount
        self.unreported.step_seconds.observe(amount / 100)

    def report(self) -> Tally:
        tally, self.unreported = self.unreported, Tally()
        return tally


def _numbers(record: ModelRecord) -> list[float]:
    found: list[float] = []
    for value in msgspec.structs.astuple(record.tally):
        found += [*value.counts, value.sum] if isinstance(value, Histogram) else [value]
    return found


@given(st.lists(st.sampled_from(["work", "report", "crash", "unload"]) | st.integers(0, 50)))
def test_counters_never_decrease(events: list[Any]) -> None:
    record, worker, before = ModelRecord(), _Worker(), _numbers(ModelRecord())
    for now, event in enumerate(events):
        match event:
            case "report":
                record.counted(worker.report(), now)
            case "crash":
                worker = _Worker()
            case "unload":
                record.counted(worker.report(), now)
                worker = _Worker()
            case int():
                worker.work(event)
        after = _numbers(record)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        before = after


def test_speeds_of_the_last_minute() -> None:
    record = ModelRecord()
    tally = Tally(prompt_tokens=100, prompt_seconds=0.5)
    tally.inter_token_seconds.observe(0.1, 10)
    record.counted(tally, 1000.0)
    assert record.speeds(1059.0) == (200.0, 10.0)
    assert record.speeds(1061.0) == (0.0, 0.0)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _request_record(record: ModelRecord, key: str = "") -> RequestRecord:
    return RequestRecord("m", "generation", Origin(key=key), record.add_request, record.add_first_token)


def test_a_request_is_counted_once() -> None:
    record = ModelRecord()
    request = _request_record(record, "team")
    request.model_ready()
    request.mark_accepted(7, answers=2)
    request.count_delta(Delta(1, "a"))
    assert record.first_token_seconds.count == 1, "before the end of the answer"
    request.count_delta(Delta(1, "b", 1, "stop", Usage(7, 3, cached_tokens=5), timings=Timings(0.1, 0.2)))
    assert not record.keys
    request.count_delta(Delta(1, "c", 0, "length", Usage(7, 4, cached_tokens=2)))
    request.end("left")
    usage = record.keys["team"]
    assert usage.outcomes == {"ok": 1}
    assert (usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (7, 2, 7)
    assert record.request_seconds.count == record.first_token_seconds.count == record.wait_seconds.count == 1


def test_received_tokens_of_a_cancelled_request_count() -> None:
    record = ModelRecord()
    request = _request_record(record)
    request.mark_accepted(7, answers=1)
    for text in "abc":
        request.count_delta(Delta(1, text))
    request.end("left")
    assert record.keys[""].outcomes == {"left": 1}
    assert record.keys[""].generated_tokens == 3


def test_a_request_without_a_worker_has_no_times() -> None:
    record = ModelRecord()
    _request_record(record).end("model_load_failed")
    assert record.keys[""].outcomes == {"model_load_failed": 1}
    assert (record.wait_seconds.count, record.first_token_seconds.count, record.request_seconds.count) == (0, 0, 1)
