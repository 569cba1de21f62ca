"""Deterministic lines of batches: their seeds and their receipts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from paddock.seeds import seed_of
from tests.forking import run_command
from tests.gateway.test_batches import chat_line, client_of, finished, line_of, results, submit
from tests.server import Server

_TOOL = {
    "type": "function",
    "function": {
        "name": "status",
        "parameters": {"type": "object", "properties": {"job_id": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with Server("-m", "fake:", "-np", "4") as server:
        yield client_of(server)


def answered(client: openai.OpenAI, lines: list[dict[str, Any]], **fields: Any) -> dict[str, dict[str, Any]]:
    """The replies by custom_id. All lines are answered."""
    batch = finished(client, submit(client, lines, extra_body=fields).id)
    assert batch.status == "completed", batch.errors
    assert batch.error_file_id is None, results(client, batch.error_file_id)
    found = results(client, batch.output_file_id)
    return {id: line["response"]["body"] for id, line in found.items()}


@pytest.mark.parametrize("per_line", [False, True])
def test_every_deterministic_line_has_the_seed_of_its_custom_id(client: openai.OpenAI, per_line: bool) -> None:
    ids = ("job-1", "row 1", "Zeile-ä", "line\nfeed", "x" * 300, " ")
    line: dict[str, Any] = {"deterministic": True} if per_line else {}
    lines = [
        *(chat_line(id, "say: x", **line) for id in ids),
        chat_line("tool", 'the "job_id" of', tools=[_TOOL], max_tokens=3, **line),
        chat_line("none", "say: x", seed=None, job_id=None, **line),
        chat_line("random", "say: x", seed=-1, **line),
        chat_line("own seed", "say: x", seed=5, **line),
        chat_line("own-job", "say: x", job_id="other", **line),
    ]
    found = answered(client, lines, **({} if per_line else {"deterministic": True}))
    seeds = {id: reply["receipt"]["seed"] for id, reply in found.items()}
    assert {id: seed["value"] for id, seed in seeds.items()} == {
        **{id: seed_of(id) for id in (*ids, "tool", "none", "random")},
        "own seed": 5,
        "own-job": seed_of("other"),
    }
    assert (seeds["job-1"]["rule"], seeds["job-1"]["job_id"]) == ("job_id", "job-1")
    assert (seeds["row 1"]["rule"], seeds["row 1"]["job_id"]) == ("request", None)


def test_a_deterministic_line_of_another_batch_has_a_receipt(client: openai.OpenAI) -> None:
    lines = [
        chat_line("yes", "say: x", deterministic=True),
        chat_line("without", "say: x", deterministic=True, receipt=False),
        chat_line("plain", "say: x"),
    ]
    assert {id for id, reply in answered(client, lines).items() if "receipt" in reply} == {"yes"}
    lines.append(chat_line("asked", "say: x", deterministic=True, receipt=True))
    found = answered(client, lines, receipt=False)
    assert {id for id, reply in found.items() if "receipt" in reply} == {"asked"}


def test_a_line_of_a_deterministic_batch_may_say_otherwise(client: openai.OpenAI) -> None:
    lines = [
        chat_line("usual", "say: x"),
        chat_line("null", "say: x", deterministic=None, receipt=None),
        chat_line("other", "say: x", deterministic=False),
        chat_line("without", "say: x", receipt=False),
    ]
    found = answered(client, lines, deterministic=True)
    assert {id for id, reply in found.items() if "receipt" in reply} == {"usual", "null"}
    lines.append(chat_line("asked", "say: x", receipt=True))
    found = answered(client, lines, deterministic=True, receipt=False)
    assert {id for id, reply in found.items() if "receipt" in reply} == {"asked"}


def test_lines_without_receipts_are_told_from_removed_receipts(client: openai.OpenAI, tmp_path: Path) -> None:
    lines = [*(chat_line(f"id-{n}", "say: x") for n in range(3)), chat_line("other", "say: x", deterministic=False)]
    batch = finished(client, submit(client, lines, extra_body={"deterministic": True}).id)
    assert batch.output_file_id is not None
    last: str = (batch.model_extra or {})["last_receipt"]
    output = tmp_path / "output.jsonl"
    output.write_bytes(client.files.content(batch.output_file_id).content)
    verified = run_command("verify", str(output), "--sample", "0", "--last", last)
    assert verified.returncode == 0, verified.stdout
    assert "4 lines: 3 as written, 0 altered" in verified.stdout
    assert "1 lines never had a receipt" in verified.stdout
    found = [json.loads(line) for line in output.read_bytes().splitlines()]
    del next(line for line in found if line["custom_id"] == "id-1")["response"]["body"]["receipt"]
    output.write_text("".join(json.dumps(line) + "\n" for line in found))
    verified = run_command("verify", str(output), "--sample", "0", "--last", last)
    assert verified.returncode == 1
    assert "(id-1): it has no receipt" in verified.stdout


def test_embeddings_have_no_receipts(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"endpoint": "/v1/embeddings", "extra_body": {"deterministic": True}}
    batch = finished(client, submit(client, [line_of("a", "/v1/embeddings", input="hi")], **options).id)
    assert "receipt" not in results(client, batch.output_file_id)["a"]["response"]["body"]


def test_a_line_that_cannot_have_a_receipt_is_refused_before_anything_runs(client: openai.OpenAI) -> None:
    url = "/v1/completions"
    lines = [
        line_of("good", url, prompt="say: x"),
        line_of("asked", url, prompt="say: x", deterministic=False, receipt=True),
        line_of("best", url, prompt="say: x", best_of=2),
        line_of("best-without", url, prompt="say: x", best_of=2, receipt=False),
    ]
    options: dict[str, Any] = {"endpoint": url, "extra_body": {"deterministic": True}}
    batch = finished(client, submit(client, lines, **options).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(one.line, one.param) for one in batch.errors.data or ()] == [(n, "body.receipt") for n in (2, 3)]
