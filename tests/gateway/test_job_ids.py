"""Job ids: echoed, logged, counted, and the default seed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paddock.seeds import seed_of
from tests.server import Server, chat_body, events, wait_for

_HELLO = [{"role": "user", "content": "hello"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": _HELLO, "max_tokens": 4},
    "/completion": {"prompt": "hello", "n_predict": 4},
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("header", [True, False])
def test_every_dialect_echoes_the_job_id(fake_server: Server, route: str, header: bool) -> None:
    body, headers = (ROUTES[route], {"X-Job-Id": "job-1"}) if header else ({**ROUTES[route], "job_id": "job-1"}, {})
    response = fake_server.client.post(route, json=body, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["x-job-id"] == "job-1"
    assert response.json()["job_id"] == "job-1"
    without = fake_server.client.post(route, json=ROUTES[route])
    assert "job_id" not in without.json() and "x-job-id" not in without.headers


def test_job_id_is_the_default_seed(fake_server: Server) -> None:
    def seed(**more: Any) -> int:
        body = {"prompt": "hello", "n_predict": 1, **more}
        return int(fake_server.client.post("/completion", json=body).json()["generation_settings"]["seed"])

    assert seed(job_id="job-1") == seed(job_id="job-1", seed=-1) == seed_of("job-1") == 1109260458
    assert seed(job_id="job-1", seed=5) == 5


def test_the_same_job_has_the_same_answer(fake_server: Server) -> None:
    def text(job: str) -> str:
        return str(fake_server.chat("anything", job_id=job)["choices"][0]["message"]["content"])

    assert text("a") == text("a")
    assert len({text(job) for job in "abcdef"}) > 1


def test_streams_echo_the_job_id(fake_server: Server) -> None:
    body = chat_body("hello", stream=True, job_id="job-2", max_tokens=4)
    with fake_server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["x-job-id"] == "job-2"
        chunks = [json.loads(data) for _, data in events(response) if data != "[DONE]"]
    assert {chunk["job_id"] for chunk in chunks} == {"job-2"}


@pytest.mark.parametrize(
    ("headers", "body", "param"),
    [
        ({"X-Job-Id": "a b"}, {}, "X-Job-Id"),
        ({"X-Job-Id": "x" * 257}, {}, "X-Job-Id"),
        ({"X-Job-Id": "a"}, {"job_id": "b"}, "job_id"),
        ({}, {"job_id": ""}, "job_id"),
        ({}, {"job_id": 3}, "job_id"),
        ({}, {"job_id": "a\nb"}, "job_id"),
    ],
)
def test_invalid_job_ids_are_refused(
    fake_server: Server, headers: dict[str, str], body: dict[str, Any], param: str
) -> None:
    response = fake_server.client.post("/v1/chat/completions", json=chat_body("hello", **body), headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_job_id_is_logged_and_counted(fake_server: Server) -> None:
    def counted() -> float:
        lines = fake_server.client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("paddock_jobs_total{"))

    before = counted()
    fake_server.chat("hello", job_id="logged-job", max_tokens=1)
    wait_for(lambda: any("logged-job" in line for line in fake_server.output), 10, "the line in the log")
    assert counted() == before + 1
    assert "logged-job" not in fake_server.client.get("/metrics").text
