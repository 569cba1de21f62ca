"""Batches of an API that refuses mistakes at once: each of their requests has a result, however they end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from paddock.batches.active import Options
from paddock.batches.records import Batch, NewBatch
from paddock.batches.service import Batches
from paddock.batches.validation import Check
from paddock.errors import AuthenticationError, QuotaExceeded
from tests.batches.test_runner import Clock, FakeServer, lines_of, ok, with_batches

_URL = "/v1/messages"


class Changing(FakeServer):
    """A server that loses a model or a key after a batch was created."""

    def __init__(self) -> None:
        super().__init__(ok)
        self.has_model = self.has_key = True

    def identity(self, model: str) -> str | None:
        return "same" if self.has_model else None

    def check(self, batch: Batch) -> Check:
        if not self.has_key:
            raise AuthenticationError("the API key does not exist")
        return super().check(batch)


async def create(batches: Batches, count: int) -> Batch:
    upload = await batches.upload("")
    for number in range(count):
        line = {"custom_id": f"id-{number}", "method": "POST", "url": _URL, "body": {"n": number}}
        await upload.write(json.dumps(line).encode() + b"\n")
    file = await upload.finish("requests.jsonl", hidden=True)
    new = NewBatch(dialect="anthropic", endpoint=_URL, input_file=file.id, window="24h", seconds=3600)
    batch, mistakes = await batches.create_valid("", new)
    assert mistakes == []
    return batch


async def ended(batches: Batches, batch: Batch) -> Batch:
    while not batch.has_ended:
        await asyncio.sleep(0.002)
        batch = await batches.batch("", batch.id, "anthropic")
    return batch


@pytest.mark.parametrize(
    ("event", "code"),
    [("model", "model_not_found"), ("key", "invalid_api_key"), ("input", "input_lost"), ("cancel", "batch_cancelled")],
)
def test_every_request_of_a_batch_that_is_never_run_has_a_result(tmp_path: Path, event: str, code: str) -> None:
    server = Changing()

    async def during(batches: Batches, _: Clock) -> Batch:
        batch = await create(batches, 1200)
        # The runner has not begun: it validates in a task of its own.
        assert (batch.status, batch.total) == ("validating", 1200)
        match event:
            case "model":
                server.has_model = False
            case "key":
                server.has_key = False
            case "input":
                (tmp_path / "files" / batch.input_file).unlink()
            case _:
                await batches.cancel("", batch.id, "anthropic")
        return await ended(batches, batch)

    batch = with_batches(tmp_path, server, during, None)
    assert server.runs == {}
    errors = lines_of(tmp_path, batch.error_file)
    assert errors.keys() == {f"id-{number}" for number in range(1200)}
    assert {line["error"]["code"] for line in errors.values()} == {code}
    assert (batch.total, batch.errors.lines, batch.output.lines) == (1200, 1200, 0)
    assert batch.not_run == (1200 if event == "cancel" else 0)


def test_two_batches_at_once_do_not_both_take_the_last_of_the_quota(tmp_path: Path) -> None:
    server = FakeServer(lambda *_: None)

    async def during(batches: Batches, _: Clock) -> Batch:
        made = await asyncio.gather(*(create(batches, 2) for _ in range(2)), return_exceptions=True)
        refused = [one for one in made if not isinstance(one, Batch)]
        assert [type(one) for one in refused] == [QuotaExceeded]
        assert "2 requests, and 2 of this key wait" in str(refused[0])
        (batch,) = (one for one in made if isinstance(one, Batch))
        files = sorted(path.name for path in (tmp_path / "files").iterdir())
        assert files == [batch.input_file], "the other's input is deleted"
        return await batches.cancel("", batch.id, "anthropic")

    with_batches(tmp_path, server, during, Options(most_waiting=3))


def test_a_batch_is_not_counted_twice_while_it_is_validated(tmp_path: Path) -> None:
    async def during(batches: Batches, _: Clock) -> Batch:
        return await ended(batches, await create(batches, 3))

    batch = with_batches(tmp_path, FakeServer(ok), during, Options(most_waiting=3))
    assert (batch.status, batch.output.lines) == ("completed", 3)
