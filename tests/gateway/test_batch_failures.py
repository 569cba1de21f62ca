"""What a client sees of failures while a batch runs, and of files that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.forking import run_command
from tests.gateway.test_batches import chat_line, client_of, finished, submit
from tests.server import Server, wait_for


def test_the_first_failures_of_a_running_batch() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "2") as server:
        client = client_of(server)
        lines = [chat_line("bad", "raise: now"), *(chat_line(f"id-{n}", "say: " + "word " * 90) for n in range(30))]
        id = submit(client, lines).id

        def failures() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (client.batches.retrieve(id).model_extra or {})["first_failures"]
            return found

        wait_for(failures, 30, "a failure")
        batch = client.batches.retrieve(id)
        assert (batch.status, batch.error_file_id) == ("in_progress", None)
        (failure,) = failures()
        assert failure.items() >= {"custom_id": "bad", "status": 500, "code": "sampling_failed"}.items()
        shown = run_command("batch", "show", id, "--url", server.url)
        assert f"failed: bad: {failure['message']}" in shown.stdout
        client.batches.cancel(id)


def _changed(**changes: Any) -> bytes:
    """A chat line with other fields; those that are `...` are left out."""
    fields = chat_line("second", "say: x") | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def _body(**fields: Any) -> bytes:
    return _changed(body={"messages": [{"role": "user", "content": "say: x"}]} | fields)


_MALFORMED: dict[str, tuple[bytes, str | None, str]] = {
    "invalid JSON": (b'{"custom_id": "b",}', None, "byte 18"),
    "cut": (_body()[:-10], None, "JSON"),
    "not UTF-8": (b'{"custom_id": "\xff"}', None, "byte 16"),
    "nested too deep": (b"[" * 5000, None, "nested too deep"),
    "no object": (b"[1, 2]", None, "must be a JSON object"),
    "unknown field": (_changed(id="x"), "id", "custom_id, method, url, body"),
    "no custom_id": (_changed(custom_id=...), "custom_id", "no custom_id"),
    "number as custom_id": (_changed(custom_id=7), "custom_id", "must be a string"),
    "empty custom_id": (_changed(custom_id=""), "custom_id", "0 characters"),
    "long custom_id": (_changed(custom_id="x" * 513), "custom_id", "513 characters"),
    "repeated custom_id": (_changed(custom_id="first"), "custom_id", "also that of line 1"),
    "no method": (_changed(method=...), "method", "no method"),
    "another method": (_changed(method="GET"), "method", "'POST'"),
    "no url": (_changed(url=...), "url", "no url"),
    "another endpoint": (_changed(url="/v1/embeddings"), "url", "/v1/chat/completions"),
    "another server": (_changed(url="https://example.com/v1/chat/completions"), "url", "/v1/chat/completions"),
    "no body": (_changed(body=...), "body", "no body"),
    "text as body": (_changed(body="x"), "body", "must be an object"),
    "no messages": (_changed(body={}), "body.messages", "messages"),
    "unknown role": (_body(messages=[{"role": "king", "content": "x"}]), "body.messages[0].role", "'assistant'"),
    "text as temperature": (_body(temperature="hot"), "body.temperature", "number"),
    "temperature below zero": (_body(temperature=-1), "body.temperature", "temperature"),
    "no answers": (_body(n=0), "body.n", "greater than or equal to 1"),
    "stream": (_body(stream=True), "body.stream", "stream"),
    "tool_choice without tools": (_body(tool_choice="required"), "body.tool_choice", "tool"),
    "schema without a schema": (_body(response_format={"type": "json_schema"}), "body.response_format", "schema"),
    "receipt of a random answer": (_body(receipt=True), "body.receipt", "deterministic"),
    "job id with a space": (_body(job_id="a b"), "body.job_id", "job_id"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with Server("-m", "fake:") as server:
        yield client_of(server)


@pytest.mark.parametrize(("second", "param", "words"), _MALFORMED.values(), ids=_MALFORMED.keys())
def test_a_malformed_file_is_refused_with_the_line_and_the_field(
    client: openai.OpenAI, second: bytes, param: str | None, words: str
) -> None:
    first, third = (json.dumps(chat_line(id, "say: x")).encode() for id in ("first", "third"))
    batch = finished(client, submit(client, b"\n".join([first, second, third])).id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None and batch.errors.data is not None
    (mistake,) = batch.errors.data
    assert mistake.line == 2
    assert mistake.param == param
    assert words in (mistake.message or "")


def test_an_empty_file_is_refused(client: openai.OpenAI) -> None:
    batch = finished(client, submit(client, b"\n").id)
    assert batch.errors is not None
    assert [(one.line, one.param, one.code) for one in batch.errors.data or ()] == [(None, None, "empty_file")]
