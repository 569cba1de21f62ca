"""What a client sees of failures while a batch runs, and of files that are refused."""

from __future__ import annotations

from typing import Any

from tests.forking import run_command
from tests.gateway.test_batches import chat_line, client_of, submit
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
