"""A batch survives what can happen to a server: kills, a full disk, a changed or missing model."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.forking import run_command
from tests.gateway.test_batches import chat_line, client_of, finished, results, submit
from tests.server import Server, chat_body, wait_for
from tests.tiers import full


def done(client: openai.OpenAI, id: str) -> int:
    counts = client.batches.retrieve(id).request_counts
    return 0 if counts is None else counts.completed + counts.failed


def wait_for_lines(client: openai.OpenAI, id: str, count: int) -> None:
    wait_for(lambda: done(client, id) >= count, 30, f"{count} lines")


def extra(client: openai.OpenAI, id: str) -> dict[str, Any]:
    return client.batches.retrieve(id).model_extra or {}


def texts(client: openai.OpenAI, id: str) -> dict[str, str]:
    batch = client.batches.retrieve(id)
    assert batch.status == "completed", batch
    found = results(client, batch.output_file_id)
    return {id: line["response"]["body"]["choices"][0]["message"]["content"] for id, line in found.items()}


def kill(server: Server) -> None:
    server.stop(signal.SIGKILL)
    server.client.close()


def lasting(line: dict[str, Any]) -> str:
    """What two runs of a line have in common: not ids, times and the place in the file."""
    body = line["response"]["body"]
    receipt = {name: body["receipt"][name] for name in ("request", "identity", "sampling", "seed", "answers")}
    return json.dumps([line["custom_id"], body["choices"], receipt], sort_keys=True)


def kill_at_random(server: Server, kind: str) -> None:
    """`both` kills the gateway while it notices the death of its worker."""
    for worker in server.workers() if kind != "gateway" else ():
        os.kill(worker, signal.SIGKILL)
    if kind != "worker":
        kill(server)


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=full)])
def test_kills_of_gateway_and_worker(tmp_path: Path, kills: int) -> None:
    """Every line is answered once, as in an undisturbed run, and the receipts are a complete chain.

    `python -m paddock_lab.batch_kills` does it a hundred times with a real model.
    """
    chance = random.Random(7)
    arguments = ("-m", "fake:delay=0.002", "-np", "4", "--data-dir", str(tmp_path / "data"))
    count = 20 * kills
    lines = [chat_line(f"id-{n}", f"say: answer {n}", f"system {n % 5}") for n in range(count)]
    id, left = "", kills
    while left:
        server = Server(*arguments).__enter__()
        client = client_of(server)
        id = id or submit(client, lines, extra_body={"deterministic": True}).id
        kind = "worker"
        while left and kind == "worker":
            wait_for_lines(client, id, min(count, done(client, id) + chance.randint(1, 12)))
            left -= 1
            kind = ("gateway", "worker", "both")[left % 3]
            kill_at_random(server, kind)
    # The last one was a kill of the gateway: 0 % 3.
    with Server(*arguments) as server:
        client = client_of(server)
        finished(client, id, 60)
        assert texts(client, id) == {f"id-{n}": f"answer {n}" for n in range(count)}
        disturbed = client.batches.retrieve(id)
        calm = finished(client, submit(client, lines, extra_body={"deterministic": True}).id, 60)
        before, after = (results(client, batch.output_file_id) for batch in (disturbed, calm))
        assert {id: lasting(line) for id, line in before.items()} == {id: lasting(line) for id, line in after.items()}
        assert disturbed.output_file_id is not None
        output = tmp_path / "output.jsonl"
        output.write_bytes(client.files.content(disturbed.output_file_id).content)
        last = extra(client, id)["last_receipt"]
    verified = run_command("verify", str(output), "--sample", "0", "--last", last)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    output.write_bytes(output.read_bytes().replace(b"answer 7", b"answer 8", 1))
    assert run_command("verify", str(output), "--sample", "0").returncode == 1


def test_a_killed_worker_does_not_fail_lines(tmp_path: Path) -> None:
    with Server("-m", "fake:delay=0.005", "-np", "2") as server:
        client = client_of(server)
        id = submit(client, [chat_line(f"id-{n}", f"say: answer {n}") for n in range(20)]).id
        wait_for(lambda: done(client, id), 30, "a line")
        os.kill(server.workers()[0], signal.SIGKILL)
        finished(client, id)
        assert texts(client, id) == {f"id-{n}": f"answer {n}" for n in range(20)}


@full
def test_a_lost_replica(tmp_path: Path) -> None:
    """Lines go to two servers. One is killed: its lines are run again by the other, and the receipts of both are one
    chain.
    """
    config = tmp_path / "config.json"
    backend = ("-m", "fake:delay=0.005", "-np", "2")
    count = 60
    # Longer than what the router compares at once.
    systems = [f"group {n}: " + "words of a long system text " * 12 for n in range(6)]
    lines = [chat_line(f"id-{n}", f"say: answer {n}", systems[n % 6], model="pooled") for n in range(count)]
    with Server(*backend) as first, Server(*backend) as second:
        replicas = {"a": {"url": first.url}, "b": {"url": second.url}}
        config.write_text(json.dumps({"model_manager": {"models": {"pooled": {"replicas": replicas}}}}))
        with Server("--config", str(config)) as server:
            client = client_of(server)
            id = submit(client, lines, extra_body={"deterministic": True}).id
            wait_for_lines(client, id, 12)
            first.stop(signal.SIGKILL)
            batch = finished(client, id, 60)
            assert texts(client, id) == {f"id-{n}": f"answer {n}" for n in range(count)}
            assert batch.output_file_id is not None
            output = tmp_path / "output.jsonl"
            output.write_bytes(client.files.content(batch.output_file_id).content)
            last = extra(client, id)["last_receipt"]
            verified = run_command("verify", str(output), "--server", server.url, "--last", last)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert f"{count} computed again: {count} identical, 0 different" in verified.stdout


@full
def test_a_line_that_crashes_the_worker_fails_alone(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"batches": {"attempts": 2}}))
    with Server("--config", str(config), "-m", "fake:", "-np", "2") as server:
        client = client_of(server)
        lines = [chat_line(f"id-{n}", f"say: answer {n}") for n in range(6)]
        batch = finished(client, submit(client, [*lines, chat_line("bad", "crash: now")]).id, 120)
        assert batch.status == "completed"
        assert len(results(client, batch.output_file_id)) == 6
        errors = results(client, batch.error_file_id)
        assert errors["bad"]["response"]["body"]["error"]["code"] == "worker_crashed"


def test_a_changed_model_ends_the_batch(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    models = tmp_path / "models"
    models.mkdir()
    model = models / "small.gguf"
    model.write_bytes(tiny_models["llama"].read_bytes())
    arguments = ("--models-dir", str(models), "--data-dir", str(tmp_path / "data"), "--batch-may-load", "never")
    with Server(*arguments) as server:
        client = client_of(server)
        lines = [chat_line("a", "x", model="small", max_tokens=2)]
        refused, allowed = (
            submit(client, lines, extra_body={"allow_model_change": allow}).id for allow in (False, True)
        )
        for id in (refused, allowed):
            wait_for(lambda id=id: extra(client, id)["waiting_for"], 30, "the batch to wait")  # type: ignore[misc]
        os.utime(model, ns=(1, 1))
        batch = finished(client, refused)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [error.code for error in batch.errors.data or ()] == ["model_changed"]
        assert results(client, batch.error_file_id)["a"]["error"]["code"] == "model_changed"
        server.wait_for_line("the model of a batch has changed", allowed)
        assert client.batches.retrieve(allowed).status == "in_progress"
        server.client.post("/admin/reload").raise_for_status()  # else the changed file is unloaded when it is noticed
        server.chat("x", model="small", max_tokens=1)  # loads it
        assert finished(client, allowed).status == "completed"
        assert results(client, client.batches.retrieve(allowed).output_file_id).keys() == {"a"}


@pytest.mark.parametrize("may_load", ["always", "never"])
def test_a_model_that_is_unloaded_in_the_middle(may_load: str) -> None:
    """The lines are run again when the model is loaded: by the batch, or by somebody else."""
    with Server("-m", "fake:delay=0.005", "-np", "2", "--batch-may-load", may_load) as server:
        client = client_of(server)
        server.chat("say: loaded")
        id = submit(client, [chat_line(f"id-{n}", f"say: answer {n}") for n in range(60)]).id
        wait_for_lines(client, id, 1)
        assert server.client.post("/admin/unload", json={"model": "fake"}).json()["models"] == ["fake"]
        if may_load == "never":
            wait_for(lambda: "not loaded" in (extra(client, id)["waiting_for"] or ""), 30, "the reason")
            assert server.workers() == []
            assert done(client, id) < 60
            server.chat("say: loaded again")
        finished(client, id)
        assert texts(client, id) == {f"id-{n}": f"answer {n}" for n in range(60)}


def test_a_batch_waits_while_another_model_is_in_use(tmp_path: Path) -> None:
    models = {"busy": {"path": "fake:delay=0.02"}, "quiet": {"path": "fake:"}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_manager": {"models": models}, "batches": {"idle_seconds": 0}}))
    with Server("--config", str(config)) as server:
        client = client_of(server)
        body = chat_body("say: " + "word " * 1000, model="busy", stream=True)
        with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()  # the stream is closed with it
            next(lines)
            id = submit(client, [chat_line("a", "say: x", model="quiet")]).id
            wait_for(lambda: "another model is in use" in (extra(client, id)["waiting_for"] or ""), 30, "the reason")
            assert len(server.workers()) == 1
        assert finished(client, id).status == "completed"


def test_a_missing_model_is_waited_for(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("first", "second"):
        (models / f"{name}.gguf").symlink_to(tiny_models["llama"])
    data = ("--data-dir", str(tmp_path / "data"))
    with Server("--models-dir", str(models), "--batch-may-load", "never", *data) as server:
        client = client_of(server)
        id = submit(client, [chat_line("a", "x", model="first", max_tokens=2)]).id
        wait_for(lambda: extra(client, id)["waiting_for"], 30, "the batch to wait")
    (models / "first.gguf").rename(tmp_path / "first.gguf")
    with Server("--models-dir", str(models), *data) as server:
        client = client_of(server)
        wait_for(lambda: "not served" in (extra(client, id)["waiting_for"] or ""), 30, "the reason")
        (tmp_path / "first.gguf").rename(models / "first.gguf")
        server.client.post("/admin/reload")
        assert finished(client, id).status == "completed"


@full
def test_a_full_disk_pauses_batches(tmp_path: Path) -> None:
    """Files of the server cannot grow beyond a limit for a while, as if the disk were full."""
    with Server("-m", "fake:delay=0.01", "-np", "2", "--data-dir", str(tmp_path / "data")) as server:
        client = client_of(server)
        warm = finished(client, submit(client, [chat_line("a", "say: x")]).id)
        assert warm.status == "completed"
        lines = [chat_line(f"id-{n}", f"say: answer {n}") for n in range(60)]
        file = client.files.create(file=b"".join(json.dumps(line).encode() + b"\n" for line in lines), purpose="batch")
        unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (12_000, unlimited[1]))
        with pytest.raises(openai.APIStatusError) as raised:
            client.files.create(file=b"x" * 3_000_000, purpose="batch")
        assert (raised.value.status_code, raised.value.code) == (507, "storage_full")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
        id = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id
        wait_for(lambda: done(client, id), 30, "a line")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100, unlimited[1]))
        wait_for(lambda: "cannot be written" in (extra(client, id)["waiting_for"] or ""), 30, "the pause")
        assert done(client, id) < 60
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
        finished(client, id)
        assert texts(client, id) == {f"id-{n}": f"answer {n}" for n in range(60)}


def test_a_stop_does_not_wait_for_a_batch(tmp_path: Path) -> None:
    arguments = ("-m", "fake:delay=0.05", "--data-dir", str(tmp_path / "data"))
    with Server(*arguments, env={"PADDOCK_SERVER__SHUTDOWN_GRACE": "100"}) as server:
        client = client_of(server)
        id = submit(client, [chat_line(f"id-{n}", "say: " + "word " * 200) for n in range(3)]).id
        wait_for(lambda: any(slot["is_processing"] for slot in server.client.get("/slots").json()), 30, "a line")
    with Server(*arguments) as server:
        client = client_of(server)
        assert client.batches.retrieve(id).status == "in_progress"
        client.batches.cancel(id)
        assert finished(client, id).status == "cancelled"
