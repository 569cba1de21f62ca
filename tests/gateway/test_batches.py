"""Files and batches of a real server, with the `openai` package."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from paddock.receipts import Checker
from tests.server import Server, wait_for
from tests.tiers import full

_ENDED = ("completed", "failed", "expired", "cancelled")


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    http: Any = server.client  # closed with the server
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, http_client=http)


def chat_line(id: str, text: str, system: str = "", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return line_of(id, "/v1/chat/completions", messages=messages, **fields)


def line_of(id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": id, "method": "POST", "url": url, "body": body}


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def submit(client: openai.OpenAI, lines: list[dict[str, Any]] | bytes, **options: Any) -> Batch:
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    given: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
    return client.batches.create(input_file_id=file.id, **given)


def finished(client: openai.OpenAI, id: str, seconds: float = 30) -> Batch:
    wait_for(lambda: client.batches.retrieve(id).status in _ENDED, seconds, "the batch to end")
    return client.batches.retrieve(id)


def results(client: openai.OpenAI, file: str | None) -> dict[str, dict[str, Any]]:
    if file is None:
        return {}
    lines = [json.loads(line) for line in client.files.content(file).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a line was answered twice"
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:", "-np", "4") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def test_a_whole_life(client: openai.OpenAI) -> None:
    lines = [chat_line(f"id-{n}", f"say: answer {n}", f"You are {n % 3}.") for n in range(20)]
    file = client.files.create(file=("questions.jsonl", jsonl(lines)), purpose="batch")
    assert (file.filename, file.purpose, file.bytes) == ("questions.jsonl", "batch", len(jsonl(lines)))
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == jsonl(lines)
    made = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"night": "first"},
    )
    assert made.status == "validating"
    assert made.expires_at == made.created_at + 24 * 3600
    batch = finished(client, made.id)
    assert (batch.status, batch.metadata, batch.error_file_id) == ("completed", {"night": "first"}, None)
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
    assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
    assert batch.usage is not None
    assert batch.usage.output_tokens > 20
    found = results(client, batch.output_file_id)
    for n in range(20):
        response = found[f"id-{n}"]["response"]
        assert response["status_code"] == 200
        assert response["request_id"].startswith("req_")
        assert response["body"]["choices"][0]["message"]["content"] == f"answer {n}"
    assert batch.output_file_id is not None
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert batch.id in [one.id for one in client.batches.list(limit=1)]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "say: hi"}),
        ("/v1/responses", {"input": "say: hi"}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_endpoints(client: openai.OpenAI, endpoint: Any, body: dict[str, Any]) -> None:
    batch = finished(client, submit(client, [line_of("a", endpoint, **body)], endpoint=endpoint).id)
    assert batch.status == "completed", batch
    reply = results(client, batch.output_file_id)["a"]["response"]["body"]
    assert reply.keys() & {"choices", "output", "data"}
    assert reply["usage"]


def test_lines_that_fail_go_to_the_error_file(client: openai.OpenAI) -> None:
    lines = [chat_line("good", "say: yes"), chat_line("bad", "raise: now"), chat_line("long", "x" * 100_000)]
    batch = finished(client, submit(client, lines).id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
    assert results(client, batch.output_file_id).keys() == {"good"}
    errors = results(client, batch.error_file_id)
    assert errors["bad"]["response"]["body"]["error"]["code"] == "sampling_failed"
    assert errors["long"]["response"]["status_code"] == 400
    assert errors["long"]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_mistakes_are_named_with_line_and_field(client: openai.OpenAI) -> None:
    good = chat_line("good", "say: x")
    content = jsonl(
        [
            good,
            {**good, "custom_id": "good"},
            chat_line("roles", "x") | {"body": {"messages": [{"role": "king", "content": "x"}]}},
            chat_line("number", "x", temperature="hot"),
            chat_line("stream", "x", stream=True),
            chat_line("schema", "x", response_format={"type": "json_schema"}),
            chat_line("tools", "x", tool_choice="required"),
        ]
    )
    batch = finished(client, submit(client, content + b"{broken\n").id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None
    found = [(one.line, one.param, one.code) for one in batch.errors.data or ()]
    assert found[0] == (2, "custom_id", "duplicate_custom_id")
    assert [line for line, _, _ in found] == [2, 3, 4, 5, 6, 7, 8]
    assert all(param and param.startswith("body.") for _, param, _ in found[1:6]), found
    assert found[3] == (5, "body.stream", "unsupported_parameter")
    assert found[6] == (8, None, "invalid_json_line")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": "/admin/unload"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"extra_body": {"priority": 1}}, "priority"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
def test_batches_that_are_refused_at_once(client: openai.OpenAI, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        submit(client, b"x\n", **changes)
    assert raised.value.param == param


def test_an_unknown_input_file(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="file-nothing") as raised:
        client.batches.create(input_file_id="file-nothing", endpoint="/v1/embeddings", completion_window="24h")
    assert raised.value.param == "input_file_id"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"files": {"file": b"x"}}, "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "fine-tune"}}, "purpose"),
        ({"files": {"other": b"x"}, "data": {"purpose": "batch"}}, "file"),
        ({"json": {"purpose": "batch"}}, "Content-Type"),
        (
            {
                "files": {"file": b"x"},
                "data": {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            },
            "expires_after.seconds",
        ),
    ],
)
def test_uploads_that_are_refused(server: Server, form: dict[str, Any], param: str) -> None:
    before = len(server.client.get("/v1/files").json()["data"])
    response = server.client.post("/v1/files", **form)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert len(server.client.get("/v1/files").json()["data"]) == before


def test_a_file_that_expires(client: openai.OpenAI) -> None:
    file = client.files.create(file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200})
    assert file.expires_at == file.created_at + 7200


def test_pages_of_files_and_batches(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(f"{n}", b"x"), purpose="batch").id for n in range(5)]
    assert [file.id for file in client.files.list(limit=2)][:5] == made[::-1]
    batches = [submit(client, [chat_line("a", "say: x")]).id for _ in range(3)]
    page = client.batches.list(limit=2)
    assert ([one.id for one in page.data], page.has_more) == (batches[:0:-1], True)
    assert next(iter(page.get_next_page().data)).id == batches[0]
    for id in batches:
        finished(client, id)


def test_a_key_sees_only_its_own(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    keys = {"ann": {"key": "sk-ann"}, "bob": {"key": "sk-bob", "models": ["other"]}}
    config.write_text(json.dumps({"server": {"keys": keys}, "batches": {"max_files_per_key": 3}}))
    with Server("--config", str(config), "-m", "fake:", "--data-dir", str(tmp_path / "data")) as server:
        ann, bob = client_of(server, "sk-ann"), client_of(server, "sk-bob")
        batch = finished(ann, submit(ann, [chat_line("a", "say: secret")]).id)
        assert batch.status == "completed"
        assert batch.output_file_id is not None
        calls: list[Any] = [
            lambda: bob.batches.retrieve(batch.id),
            lambda: bob.batches.cancel(batch.id),
            lambda: bob.files.retrieve(batch.input_file_id),
            lambda: bob.files.content(batch.output_file_id or ""),
            lambda: bob.files.delete(batch.input_file_id),
            lambda: bob.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            ),
        ]
        for call in calls:
            with pytest.raises(openai.NotFoundError):
                call()
        assert not bob.files.list().data
        assert not bob.batches.list().data
        with pytest.raises(openai.AuthenticationError):
            client_of(server, "sk-none").files.list()
        # The lines of a batch are requests of its key: this one may not use the model.
        refused = finished(bob, submit(bob, [chat_line("a", "say: x")]).id)
        assert refused.errors is not None
        assert [(one.code, one.line) for one in refused.errors.data or ()] == [("permission_denied", 1)]
        ann.files.create(file=b"x", purpose="batch")
        with pytest.raises(openai.PermissionDeniedError, match="max_files_per_key") as raised:
            ann.files.create(file=b"x", purpose="batch")
        assert raised.value.code == "quota_exceeded"
        # The usage of the key counts the lines.
        usage = httpx.get(f"{server.url}/v1/usage", headers={"x-api-key": "sk-ann"}).json()
        assert usage["completion_tokens"] > 0
        server.wait_for_line(f"batch={batch.id}", "key=ann", "path=/v1/chat/completions")


def test_quotas(tmp_path: Path) -> None:
    settings = {"max_file_bytes": 3000, "max_bytes_per_key": 4000, "max_waiting_per_key": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"batches": settings}))
    with Server("--config", str(config), "-m", "fake:") as server:
        client = client_of(server)
        with pytest.raises(openai.APIStatusError, match="max_file_bytes") as raised:
            client.files.create(file=b"x" * 3001, purpose="batch")
        assert raised.value.status_code == 413
        batch = finished(client, submit(client, [chat_line(str(n), "say: x") for n in range(3)]).id)
        assert batch.errors is not None
        assert [one.code for one in batch.errors.data or ()] == ["quota_exceeded"]
        client.files.create(file=b"x" * 2900, purpose="batch")
        with pytest.raises(openai.PermissionDeniedError, match="max_bytes_per_key"):
            client.files.create(file=b"x" * 2900, purpose="batch")


def test_cancel_stops_running_lines() -> None:
    with Server("-m", "fake:delay=0.02", "-np", "2") as server:
        client = client_of(server)
        lines = [chat_line("first", "say: a"), *(chat_line(f"id-{n}", "say: " + "word " * 90) for n in range(30))]
        batch = submit(client, lines)
        wait_for(lambda: (client.batches.retrieve(batch.id).request_counts or _ZERO).completed, 30, "a line")
        assert client.batches.cancel(batch.id).status == "cancelling"
        batch = finished(client, batch.id)
        assert batch.status == "cancelled"
        assert batch.cancelling_at and batch.cancelled_at
        done, failed = results(client, batch.output_file_id), results(client, batch.error_file_id)
        assert "first" in done
        assert done.keys().isdisjoint(failed)
        assert len(done) + len(failed) == 31
        assert {line["error"]["code"] for line in failed.values()} == {"batch_cancelled"}
        wait_for(
            lambda: not any(slot["is_processing"] for slot in server.client.get("/slots").json()), 10, "free slots"
        )
        assert client.batches.cancel(batch.id).status == "cancelled"


_ZERO = openai.types.BatchRequestCounts(completed=0, failed=0, total=0)


def test_a_model_that_is_not_loaded_is_waited_for() -> None:
    with Server("-m", "fake:", "--batch-may-load", "never") as server:
        client = client_of(server)
        batch = submit(client, [chat_line("a", "say: x")], completion_window="1m")
        wait_for(lambda: client.batches.retrieve(batch.id).model_extra["waiting_for"], 30, "a reason")  # type: ignore[index]
        seen = client.batches.retrieve(batch.id)
        assert seen.status == "in_progress"
        assert "do not load models" in (seen.model_extra or {})["waiting_for"]
        assert server.workers() == []
        server.chat("say: now it is loaded")
        assert finished(client, batch.id).status == "completed"


def test_lines_run_at_the_times_of_the_settings() -> None:
    now = time.localtime()
    later, end = (now.tm_hour + 2) % 24, (now.tm_hour + 3) % 24
    with Server("-m", "fake:", "--batch-windows", f"{later:02}:00-{end:02}:00") as server:
        client = client_of(server)
        batch = submit(client, [chat_line("a", "say: x")])
        wait_for(lambda: (client.batches.retrieve(batch.id).model_extra or {})["waiting_for"], 30, "a reason")
        assert "other times of the day" in (client.batches.retrieve(batch.id).model_extra or {})["waiting_for"]
        assert client.batches.cancel(batch.id).status == "cancelling"
        assert finished(client, batch.id).status == "cancelled"


def test_lines_with_a_common_prefix_follow_each_other(tmp_path: Path) -> None:
    """With one line at a time the order of the output is the order in which lines were run."""
    with Server("-m", "fake:", "-np", "1", "--batch-in-flight", "1") as server:
        client = client_of(server)
        lines = [chat_line(f"{n % 4}-{n}", "say: x", f"system {n % 4} " + "word " * 20) for n in range(24)]
        batch = finished(client, submit(client, lines).id)
        order = [id.partition("-")[0] for id in results(client, batch.output_file_id)]
        assert order == sorted(order)
        assert batch.usage is not None
        # Of 24 prompts all but the first of each group find their system prompt in the cache.
        assert batch.usage.input_tokens_details.cached_tokens > 20 * 100


def test_deterministic_lines_have_a_seed_of_their_own(client: openai.OpenAI) -> None:
    lines = [chat_line(f"job-{n}", "tell me more", temperature=1.0, max_tokens=8) for n in range(3)]
    answers = []
    for _ in range(2):
        batch = finished(client, submit(client, lines, extra_body={"deterministic": True}).id)
        assert batch.status == "completed", batch
        found = results(client, batch.output_file_id)
        answers.append({id: line["response"]["body"]["choices"][0]["message"] for id, line in found.items()})
    assert answers[0] == answers[1]


def test_receipts_of_a_batch_are_a_chain(client: openai.OpenAI) -> None:
    lines = [chat_line(f"job-{n}", f"say: {n}", max_tokens=8) for n in range(6)]
    batch = finished(client, submit(client, lines, extra_body={"deterministic": True}).id)
    assert batch.output_file_id is not None, batch
    written = client.files.content(batch.output_file_id).content.splitlines()
    checker = Checker()
    assert [checker.check(line).problems for line in written] == [[]] * 6
    asked = [json.loads(line)["response"]["body"]["receipt"]["request"]["body"] for line in written]
    created = datetime.date.fromtimestamp(batch.created_at).isoformat()
    assert {body["template_date"] for body in asked} == {created}, "also if it lasts past midnight"
    changed = Checker()
    found = [changed.check(line).problems for line in (written[0], *written[2:])]
    assert any(found)


def test_the_date_of_a_model_and_of_a_line_are_kept(tmp_path: Path) -> None:
    config = tmp_path / "paddock.json"
    defaults = {"template_date": "2024-07-26"}
    config.write_text(json.dumps({"model_manager": {"models": {"a": {"path": "fake:", "defaults": defaults}}}}))
    with Server("--config", str(config)) as server:
        client = client_of(server)
        lines = [
            chat_line("model", "say: a", model="a"),
            chat_line("line", "say: b", model="a", template_date="2020-02-29"),
        ]
        batch = finished(client, submit(client, lines, extra_body={"deterministic": True}).id)
        found = results(client, batch.output_file_id)
    bodies = {id: line["response"]["body"]["receipt"]["request"]["body"] for id, line in found.items()}
    assert {id: body["template_date"] for id, body in bodies.items()} == {"model": "2024-07-26", "line": "2020-02-29"}


def test_metrics(server: Server, client: openai.OpenAI) -> None:
    finished(client, submit(client, [chat_line("a", "say: x"), chat_line("b", "raise: x")]).id)
    text = server.client.get("/metrics").text
    assert 'paddock_batch_results_total{model_id="fake",outcome="failed"}' in text
    assert 'paddock_batch_lines{model_id="fake",state="waiting"}' in text or "paddock_batches{" in text
    assert 'paddock_batch_tokens_total{kind="generated",model_id="fake"}' in text


def test_a_second_server_with_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with Server("-m", "fake:", "--data-dir", folder):
        with pytest.raises(AssertionError, match=r"another server .* uses the data folder"):
            Server("-m", "fake:", "--data-dir", folder).__enter__()


def test_the_default_folder_is_shared_by_the_first_server_only(tmp_path: Path) -> None:
    """Without --data-dir a second server starts, and says who has the folder."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    with Server("-m", "fake:", env=env) as first, Server("-m", "fake:", env=env) as second:
        client_of(first).files.create(file=b"x", purpose="batch")
        response = second.client.get("/v1/files")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "batches_unavailable"
        assert str(first.process.pid) in response.json()["error"]["message"]
        assert second.chat("say: still here")


@full
def test_a_file_larger_than_the_memory_for_bodies(client: openai.OpenAI, server: Server) -> None:
    def resident() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    before = resident()
    filler = "x" * 100_000
    data = jsonl([chat_line(f"id-{n}", "say: x", user=filler) for n in range(3000)])
    assert len(data) > 300_000_000
    file = client.files.create(file=("big.jsonl", data), purpose="batch")
    assert file.bytes == len(data)
    assert resident() - before < 100_000
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert finished(client, batch.id, 120).status == "completed"
    assert resident() - before < 200_000
