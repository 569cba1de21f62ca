"""Anthropic's message batches of a real server, with the `anthropic` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.forking import run_command
from tests.server import Server, wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:delay=0.002", "-np", "2") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def item(id: str, text: str, **params: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return {"custom_id": id, "params": {"model": "fake", "max_tokens": 50, "messages": messages, **params}}


def test_a_whole_life(client: anthropic.Anthropic) -> None:
    batches = client.messages.batches
    made = batches.create(requests=[item("a", "say: yes"), item("b", "raise: no"), item("c", "say: also")])
    assert (made.type, made.processing_status, made.results_url) == ("message_batch", "in_progress", None)
    assert made.request_counts.processing == 3, "also while it is validated"
    wait_for(lambda: batches.retrieve(made.id).processing_status == "ended", 30, "the batch")
    batch = batches.retrieve(made.id)
    assert batch.ended_at is not None
    assert batch.request_counts.model_dump() == {
        "processing": 0,
        "succeeded": 2,
        "errored": 1,
        "canceled": 0,
        "expired": 0,
    }
    found: dict[str, Any] = {line.custom_id: line.result for line in batches.results(made.id)}
    assert found["a"].message.content[0].text == "yes"
    assert found["c"].type == "succeeded"
    assert (found["b"].type, found["b"].error.type) == ("errored", "error")
    assert made.id in [one.id for one in batches.list(limit=1)]
    assert batches.delete(made.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(made.id)


def test_receipts_cover_the_results_as_they_are_shown(client: anthropic.Anthropic, tmp_path: Path) -> None:
    batches = client.messages.batches
    requests = [item(f"id-{n}", f"say: answer {n}", deterministic=True) for n in range(4)]
    made = batches.create(requests=[*requests, item("plain", "say: x"), item("bad", "raise: no", deterministic=True)])
    wait_for(lambda: batches.retrieve(made.id).processing_status == "ended", 30, "the batch")
    results = {line.custom_id: line.result for line in batches.results(made.id)}
    assert {id for id, result in results.items() if result.type == "succeeded"} == results.keys() - {"bad"}
    batch = batches.retrieve(made.id)
    assert batch.results_url is not None
    output = tmp_path / "results.jsonl"
    output.write_bytes(written := httpx.get(batch.results_url).content)
    last: str = (batch.model_extra or {})["last_receipt"]
    verified = run_command("verify", str(output), "--server", str(client.base_url), "--last", last)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "6 lines: 4 as written, 0 altered" in verified.stdout
    assert "4 computed again: 4 identical, 0 different" in verified.stdout
    for old, new in ((b'"text":"answer 2"', b'"text":"answer 3"'), (b'"custom_id":"id-1"', b'"custom_id":"id-x"')):
        assert old in written
        output.write_bytes(written.replace(old, new, 1))
        assert run_command("verify", str(output), "--sample", "0", "--last", last).returncode == 1


def test_cancel(client: anthropic.Anthropic) -> None:
    batches = client.messages.batches
    made = batches.create(requests=[item(f"id-{n}", "say: " + "word " * 100, max_tokens=900) for n in range(40)])
    with pytest.raises(anthropic.AnthropicError):
        batches.results(made.id)
    assert batches.cancel(made.id).processing_status in ("canceling", "ended")
    wait_for(lambda: batches.retrieve(made.id).processing_status == "ended", 30, "the batch")
    batch = batches.retrieve(made.id)
    assert batch.cancel_initiated_at is not None
    results = list(batches.results(made.id))
    assert batch.request_counts.canceled + batch.request_counts.succeeded == len(results) == 40
    assert {line.result.type for line in results} <= {"canceled", "succeeded"}


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "requests"),
        ([item("a b", "x")], "custom_id"),
        ([item("a", "x"), item("a", "y")], "requests\\[1\\].custom_id.*that of line 1"),
        ([item("a", "x"), item("b", "x", max_tokens="many")], "requests\\[1\\].params.max_tokens"),
        ([item("a", "x", stream=True)], "requests\\[0\\].params.stream"),
    ],
)
def test_mistakes_are_refused_at_once(client: anthropic.Anthropic, requests: list[Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=words):
        client.messages.batches.create(requests=requests)


def test_more_than_the_quota_of_waiting_requests_is_refused_at_once(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"batches": {"max_waiting_per_key": 3, "may_load": "never"}}))
    with (
        Server("--config", str(config), "-m", "fake:") as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        batches = client.messages.batches
        first = batches.create(requests=[item("a", "say: x"), item("b", "say: x")])
        with pytest.raises(anthropic.PermissionDeniedError, match=r"2 requests, and 2 of .*max_waiting_per_key"):
            batches.create(requests=[item("a", "say: x"), item("b", "say: x")])
        batches.create(requests=[item("a", "say: x")])
        assert len(batches.list().data) == 2
        assert batches.retrieve(first.id).request_counts.processing == 2


def test_pages(client: anthropic.Anthropic) -> None:
    batches = client.messages.batches
    made = [batches.create(requests=[item("a", "say: x")]).id for _ in range(3)]
    page = batches.list(limit=2)
    assert [batch.id for batch in page.data] == made[:0:-1]
    assert page.has_more
    assert batches.list(limit=2, after_id=made[1]).data[0].id == made[0]
    assert [batch.id for batch in batches.list(limit=2, before_id=made[0]).data] == made[:0:-1]
