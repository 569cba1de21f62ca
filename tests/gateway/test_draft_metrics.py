from __future__ import annotations

from tests.server import Server, wait_for


def _metric(server: Server, name: str) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"llamacpp:spec_decode_{name}"))


def test_draft_tokens_are_counted() -> None:
    with Server("-m", "fake:draft=4", "--metrics") as server:
        body = {"prompt": "Once upon a time", "n_predict": 40}
        timings = server.client.post("/completion", json=body).json()["timings"]
        wait_for(lambda: _metric(server, "num_draft_tokens_total"), 20, "the worker's counters")
        assert _metric(server, "num_draft_tokens_total") == timings["draft_n"] > 0
        assert _metric(server, "num_accepted_tokens_total") == timings["draft_n_accepted"] > 0
        assert 0 < _metric(server, "num_drafts_total") <= timings["draft_n"]
