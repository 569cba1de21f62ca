"""Several keys share a model: requests are scheduled fairly, and tenants do not share prefixes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"
KEYS: dict[str, dict[str, Any]] = {
    "boss": {"admin": True, "tenant": "house"},
    "flood": {},
    "other": {},
    "night": {"priority": "batch"},
    "anna": {"tenant": "garden"},
    "ben": {"tenant": "stable"},
    "carl": {"tenant": "stable"},
}


def _server(folder: Path, *args: str) -> Server:
    keys = {name: {**limits, "key": name} for name, limits in KEYS.items()}
    config = folder / "config.json"
    config.write_text(json.dumps({"server": {"keys": keys}}))
    return Server("--config", str(config), *args, env={"PADDOCK_SERVER__SHUTDOWN_GRACE": "0"})


def _post(server: Server, key: str, path: str, body: Any, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=200, **options)


def _chat(server: Server, key: str, text: str, **options: Any) -> dict[str, Any]:
    response = _post(server, key, CHAT, chat_body(text, **options))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def _running(server: Server) -> int:
    slots = httpx.get(f"{server.url}/slots", headers={"authorization": "Bearer boss"}, timeout=200).json()
    return sum(bool(slot["is_processing"]) for slot in slots)


class Crowd:
    """Running requests, each in its own thread, and the order in which they finished."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor) -> None:
        self._server = server
        self._pool = pool
        self.order: list[str] = []

    def ask(self, key: str, text: str) -> Any:
        return self._pool.submit(self._answer, key, text)

    def _answer(self, key: str, text: str) -> str:
        headers = {"authorization": f"Bearer {key}"}
        body = chat_body(f"say: {text}", stream=True)
        with httpx.stream("POST", f"{self._server.url}{CHAT}", json=body, headers=headers, timeout=200) as response:
            chunks = [json.loads(data) for _, data in events(response) if data != "[DONE]"]
        self.order.append(key)
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("layout", [pytest.param("-kvu", marks=full), "-no-kvu"])
def test_many_requests_of_one_key_do_not_block_another(tmp_path: Path, layout: str) -> None:
    with _server(tmp_path, "-m", "fake:delay=0.005", "-np", "2", layout) as server, ThreadPoolExecutor(20) as pool:
        crowd = Crowd(server, pool)
        flood = [crowd.ask("flood", f"{number} " + "x" * 300) for number in range(6)]
        wait_for(lambda: _running(server) == 2, 20, "all slots to be busy")
        other = crowd.ask("other", "hello")
        assert other.result() == "hello"
        # A preempted request continues where it stopped.
        assert [answer.result() for answer in flood] == [f"{number} " + "x" * 300 for number in range(6)]
        assert crowd.order.index("other") < 4, "two were running, and one of them may have been about to finish"


@full
def test_background_requests_are_preempted(tmp_path: Path) -> None:
    with _server(tmp_path, "-m", "fake:delay=0.005", "-np", "2") as server, ThreadPoolExecutor(20) as pool:
        crowd = Crowd(server, pool)
        night = [crowd.ask("night", f"{number} " + "x" * 300) for number in range(6)]
        wait_for(lambda: _running(server) == 2, 20, "all slots to be busy")
        day = [crowd.ask(key, f"{number} " + "y" * 40) for number, key in enumerate(["flood", "flood", "other"])]
        assert [answer.result() for answer in day] == [f"{number} " + "y" * 40 for number in range(3)]
        assert [answer.result() for answer in night] == [f"{number} " + "x" * 300 for number in range(6)]
        assert crowd.order.count("night") - crowd.order[: crowd.order.index("other")].count("night") >= 2


@full
def test_embeddings_are_fair_between_keys(tmp_path: Path) -> None:
    with (
        _server(tmp_path, "-m", "fake:delay=0.1", "--embedding", "-np", "4") as server,
        ThreadPoolExecutor(8) as pool,
    ):
        order: list[str] = []

        def embed(key: str, inputs: list[str]) -> None:
            assert _post(server, key, "/v1/embeddings", {"input": inputs}).status_code == 200
            order.append(key)

        libraries = [pool.submit(embed, "flood", ["hay"] * 200) for _ in range(4)]
        wait_for(lambda: _running(server) == 1, 20, "the requests to run")
        pool.submit(embed, "other", ["a question"]).result()
        for library in libraries:
            library.result()
        assert order[0] == "other"


def test_a_full_queue_admits_a_key_without_requests(tmp_path: Path) -> None:
    args = ("-m", "fake:delay=0.01", "-np", "1", "--max-queue", "1")
    with _server(tmp_path, *args) as server, ExitStack() as flood:
        _chat(server, "boss", "say: x")  # a stream that waits for a load begins before it is queued
        body, headers = chat_body(f"say: {'x' * 3000}", stream=True), {"authorization": "Bearer flood"}
        for _ in range(2):
            stream = httpx.stream("POST", f"{server.url}{CHAT}", json=body, headers=headers, timeout=200)
            assert flood.enter_context(stream).status_code == 200, "it is running or queued"
        refused = _post(server, "flood", CHAT, chat_body("say: hi"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert _chat(server, "other", "say: hello")["choices"][0]["message"]["content"] == "hello"


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["llama", "hybrid"])
def tenants(
    request: pytest.FixtureRequest, tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tenants")
    args = ("-m", str(tiny_models[request.param]), "-np", "3", "-t", "1", "--slot-save-path", str(folder))
    with _server(folder, *args) as server:
        yield server


TEMPLATE = 20
"""The most tokens that all conversations have in common."""


def test_tenants_do_not_share_prefixes(tenants: Server) -> None:
    ask: dict[str, Any] = {"text": "the mare and the foal " * 20, "max_tokens": 2}
    assert _cached(_chat(tenants, "anna", id_slot=1, **ask)) <= TEMPLATE
    assert _cached(_chat(tenants, "anna", **ask)) > 4 * TEMPLATE
    assert _cached(_chat(tenants, "ben", id_slot=1, **ask)) <= TEMPLATE
    assert _cached(_chat(tenants, "carl", **ask)) > 4 * TEMPLATE, "the same tenant as ben's"


def test_concurrent_prompts_of_two_tenants_are_computed_twice(tenants: Server) -> None:
    prompt = "one horse by the brook " * 20
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda key: _chat(tenants, key, prompt, max_tokens=2), ["anna", "ben"]))
    assert all(_cached(answer) <= TEMPLATE for answer in answers)


def test_a_restored_slot_is_not_shared_with_another_tenant(tmp_path: Path) -> None:
    def act(action: str) -> None:
        params = {"action": action}
        response = _post(server, "boss", "/slots/0", {"filename": "a.bin"}, params=params)
        assert response.status_code == 200, response.text

    prompt = "say: " + "x" * 200
    with _server(tmp_path, "-m", "fake:", "-np", "2", "--slot-save-path", str(tmp_path)) as server:
        size = _chat(server, "anna", prompt, id_slot=0)["usage"]["prompt_tokens"]
        act("save")
    with _server(tmp_path, "-m", "fake:", "-np", "2", "--slot-save-path", str(tmp_path)) as server:
        act("restore")
        assert _cached(_chat(server, "ben", prompt, id_slot=0)) == 0
        assert _cached(_chat(server, "anna", prompt, id_slot=1)) == size - 1
