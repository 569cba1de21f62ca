"""Replicas behind one name: crashes, failures, differing replicas, and deterministic jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"
LONG = "say: " + " ".join(f"word{number}" for number in range(60))


@contextmanager
def pool(folder: Path, replicas: Any, **model: Any) -> Iterator[Server]:
    file = folder / "paddock.json"
    file.write_text(json.dumps({"model_manager": {"models": {"pooled": {"replicas": replicas, **model}}}}))
    with Server("--config", str(file)) as server:
        yield server


def replicas(server: Server) -> dict[str, dict[str, Any]]:
    (model,) = server.client.get("/admin/status").json()["models"]
    return {replica["name"]: replica for replica in model["replicas"]}


def ask(server: Server, text: str, **options: Any) -> httpx.Response:
    return server.client.post(CHAT, json=chat_body(text, model="pooled", **options))


class Streams:
    """Running streams, each read up to its first token."""

    def __init__(self, stack: ExitStack, server: Server, count: int, text: str = LONG) -> None:
        body = chat_body(text, model="pooled", stream=True)
        responses = [stack.enter_context(server.client.stream("POST", CHAT, json=body)) for _ in range(count)]
        self._reading = [events(response) for response in responses]
        for reading in self._reading:
            next(reading)
            next(reading)

    def endings(self) -> list[str]:
        """`[DONE]`, or the error code."""
        return [_ending(list(reading)) for reading in self._reading]


def _ending(rest: list[tuple[str, str]]) -> str:
    event, data = rest[-1]
    return str(json.loads(data)["error"]["code"]) if event == "error" else data


@full
def test_status_of_a_remote_replica(tmp_path: Path) -> None:
    """Without metrics its load is read from its slots. Its labels are the same before and after its model is loaded."""
    with Server("-m", "fake:delay=0.02", "--no-metrics", "-np", "2") as upstream:
        with pool(tmp_path, {"a": {"url": upstream.url}}) as server:
            wait_for(lambda: replicas(server)["a"]["health"] == "ready", 20, "the replica to be ready")
            wait_for(lambda: replicas(server)["a"]["engine_version"] != "unknown", 20, "its properties")
            before = replicas(server)["a"]["engine_version"]
            with ThreadPoolExecutor(4) as threads:
                answers = list(threads.map(lambda n: ask(server, f"say: {n}", stream=n % 2 == 0), range(8)))
            assert [answer.status_code for answer in answers] == [200] * 8

            def outcomes() -> dict[str, str]:
                page = server.client.get("/metrics").text
                ended = [line for line in page.splitlines() if line.startswith("paddock_replica_answers_total")]
                return {line.partition('outcome="')[2].partition('"')[0]: line.split()[-1] for line in ended}

            all_are_complete = {"ok": "8.0", "left": "0.0", "replica_failed": "0.0"}
            wait_for(lambda: outcomes() == all_are_complete, 20, "the answers to be counted")
            with upstream.client.stream("POST", CHAT, json=chat_body(LONG * 4, stream=True)) as response:
                reading = events(response)  # a reference keeps the response open
                next(reading)
                wait_for(lambda: replicas(server)["a"]["running"] == 1, 20, "the request of another client")
            assert replicas(server)["a"]["fingerprint"], "its model is loaded now"
            assert replicas(server)["a"]["engine_version"] == before


@full
def test_a_killed_worker_fails_only_its_started_streams(tmp_path: Path) -> None:
    with pool(tmp_path, 2, path="fake:delay=0.02", parallel=2, preload=True) as server, ExitStack() as stack:
        _wait_until_loaded(server)
        streams = Streams(stack, server, 4)
        before = replicas(server)
        assert [one["running"] for one in before.values()] == [2, 2]
        with ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(ask, server, f"say: {number}") for number in range(4)]
            wait_for(lambda: sum(one["running"] for one in replicas(server).values()) == 8, 10, "all eight")
            os.kill(before["0"]["pid"], signal.SIGKILL)
            answers = [one.result() for one in waiting]
        assert sorted(streams.endings()) == ["[DONE]", "[DONE]", "worker_crashed", "worker_crashed"]
        assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["0", "1", "2", "3"]
        with ThreadPoolExecutor(6) as threads:  # more than one replica can serve, so the other is loaded again
            text = "say: what takes a while"
            assert all(one.status_code == 200 for one in threads.map(lambda _: ask(server, text), range(6)))
        wait_for(lambda: replicas(server)["0"]["fingerprint"], 30, "the other worker")
        assert replicas(server)["0"]["pid"] != before["0"]["pid"]
        more = Streams(stack, server, 4)
        _wait_for_two_on_each(server)
        assert more.endings() == ["[DONE]"] * 4


@full
def test_a_killed_server_fails_only_its_started_streams(tmp_path: Path) -> None:
    args = ("-m", "fake:delay=0.02", "-np", "2")
    with Server(*args) as first, Server(*args) as second, ExitStack() as stack:
        with pool(tmp_path, {"a": {"url": first.url}, "b": {"url": second.url}}) as server:
            assert first.chat("say: awake") and second.chat("say: awake")
            _wait_until_loaded(server)
            streams = Streams(stack, server, 4)
            _wait_for_two_on_each(server)
            first.process.kill()
            first.process.wait()
            assert all(ask(server, "say: on").status_code == 200 for _ in range(4))
            assert sorted(streams.endings()) == ["[DONE]", "[DONE]", "replica_lost", "replica_lost"]
            _wait_for_health(server, "down", "ready")
            with Server(*args, "--port", first.url.rpartition(":")[2]) as again:
                assert again.chat("say: awake")
                _wait_until_loaded(server)
                more = Streams(stack, server, 4)
                _wait_for_two_on_each(server)
                assert more.endings() == ["[DONE]"] * 4


def test_conversations_are_routed_by_prefix(tmp_path: Path) -> None:
    with pool(tmp_path, 3, path="fake:", preload=True) as server:
        _wait_until_loaded(server)
        conversations = [[{"role": "user", "content": f"{number}: " + "Tell me more. " * 40}] for number in range(6)]
        for turn in range(3):
            for messages in conversations:
                body = {"model": "pooled", "messages": messages, "seed": 1, "max_tokens": 20}
                answer = server.client.post(CHAT, json=body).json()
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached > 300 or turn == 0
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        sent = [line for line in server.client.get("/metrics").text.splitlines() if 'reason="new"' in line]
        assert sum(float(line.rsplit(" ", 1)[1]) > 0 for line in sent) > 1  # both replicas are used


def test_a_reload_touches_only_changed_replicas(tmp_path: Path) -> None:
    with pool(tmp_path, 2, path="fake:delay=0.02", parallel=2, preload=True) as server, ExitStack() as stack:
        _wait_until_loaded(server)
        before = {name: one["pid"] for name, one in replicas(server).items()}
        streams = Streams(stack, server, 2, "say: " + "x" * 100)
        file = tmp_path / "paddock.json"
        settings = json.loads(file.read_text())
        settings["model_manager"]["models"]["pooled"]["replicas"] = 3
        file.write_text(json.dumps(settings))
        assert server.client.post("/admin/reload").json()["changed"] == ["pooled"]
        assert {name: one["pid"] for name, one in replicas(server).items()} == before | {"2": None}
        assert ask(server, "say: on").status_code == 200
        assert streams.endings() == ["[DONE]"] * 2


def test_a_failing_replica_is_not_used(tmp_path: Path) -> None:
    with Server("-m", "fake:", "-np", "1") as good, _failing_server() as bad:
        with pool(tmp_path, {"bad": {"url": bad}, "good": {"url": good.url}}) as server:
            _wait_for_health(server, "ready", "ready")
            with ThreadPoolExecutor(4) as threads:
                answers = list(threads.map(lambda number: ask(server, f"say: {number}"), range(24)))
            assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == [*map(str, range(24))]
            state = replicas(server)["bad"]
            assert state["failures"] >= 2 and "500" in state["failure"]
            assert sum(_counted(server, "paddock_replica_requests_total", "bad")) < 24


@full
@pytest.mark.parametrize("way", ["refuses", "breaks off", "falls silent", "talks nonsense", "never ends", "loads"])
def test_a_failure_before_the_first_token_is_retried_on_another_replica(
    fake_server: Server, tmp_path: Path, way: str
) -> None:
    with _failing_server(way) as bad:
        urls = {"bad": {"url": bad}, "good": {"url": fake_server.url}}
        assert fake_server.chat("say: awake")
        with pool(tmp_path, urls, hang_timeout=4) as server:
            _wait_for_health(server, "ready", "ready")
            with ThreadPoolExecutor(6) as threads:
                asking = [threads.submit(ask, server, f"say: {number}", stream=number % 2 == 1) for number in range(6)]
                answers = [one.result() for one in asking]
            numbers = count(6)

            def failing_was_asked() -> bool:
                """On a busy machine the replica may be down for a moment and get no request."""
                if sum(_counted(server, "paddock_replica_retries_total", "bad")) >= 1:
                    return True
                answers.append(ask(server, f"say: {next(numbers)}"))
                return False

            wait_for(failing_was_asked, 20, "a retried request")
            assert {(answer.status_code, "error" in answer.text) for answer in answers} == {(200, False)}


def test_another_http_server_is_not_used(tmp_path: Path) -> None:
    with _failing_server(props={"something": "else"}) as stranger:
        with pool(tmp_path, {"a": {"url": stranger}}) as server:
            _wait_for_health(server, "ready")
            response = ask(server, "hello")
            assert response.status_code == 503
            assert "/props" in response.json()["error"]["message"]


def test_no_usable_replica(tmp_path: Path) -> None:
    with socket.socket() as reserved, ExitStack() as stack:
        reserved.bind(("127.0.0.1", 0))  # without listen: connections are refused, and no other process gets the port
        port = reserved.getsockname()[1]
        server = stack.enter_context(pool(tmp_path, {"a": {"url": f"http://127.0.0.1:{port}"}}))
        _wait_for_health(server, "down")
        response = ask(server, "hello")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_replica"
        assert "a (" in response.json()["error"]["message"]
        assert "127.0.0.1" not in response.text, "clients do not see addresses"
        assert response.headers["retry-after"] == "1"
        assert server.client.get("/health").status_code == 200


def test_parameters_that_llama_server_ignores_are_refused(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    with LlamaServer(llama_server_binary(), tiny_models["llama"], "-c", "512", "-np", "2") as upstream:
        with pool(tmp_path, {"a": {"url": upstream.url}}) as server:
            _wait_for_health(server, "ready")
            refused: dict[str, dict[str, Any]] = {
                "regex": {"regex": "[ab]+"},
                "deterministic": {"deterministic": True},
                "lora[0].id": {"lora": [{"id": 0, "scale": 1.0}]},
            }
            for param, body in refused.items():
                response = ask(server, "hello", **body)
                assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_deterministic_requests_skip_differing_replicas(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    with pool(
        tmp_path,
        {"one": {"n_threads": 1}, "two": {"n_threads": 2}},
        path=str(tiny_models["llama"]),
        deterministic=True,
        preload=True,
        n_ctx=512,
    ) as server:
        wait_for(lambda: all(one["fingerprint"] for one in replicas(server).values()), 60, "both workers")
        (odd,) = [name for name, state in replicas(server).items() if state["excluded"]]
        assert "fingerprint" in replicas(server)[odd]["excluded"]
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda number: ask(server, f"{number}", max_tokens=4), range(6)))
        (even,) = {"one", "two"} - {odd}
        assert {answer.json()["system_fingerprint"] for answer in answers} == {replicas(server)[even]["fingerprint"]}
        server.wait_for_line("replica differs", odd)
        server.client.post("/admin/drain", json={"model": "pooled", "replica": even})
        assert (
            ask(server, "and now?", max_tokens=4).status_code == 200
        )  # a drained replica is not the reference any more


@full
@pytest.mark.parametrize("kind", ["workers", "paddocks", "llama-server"])
def test_a_hundred_jobs_give_the_same_bytes_on_both_replicas(
    kind: str, tmp_path: Path, tiny_models: dict[str, Path]
) -> None:
    model = tiny_models["llama"]
    with ExitStack() as stack:
        model_settings: dict[str, Any] = {"deterministic": True, "n_ctx": 1024}
        if kind == "workers":
            model_settings |= {"replicas": 2, "path": str(model)}
        elif kind == "paddocks":
            servers = [stack.enter_context(Server("-m", str(model), "--deterministic", "-c", "1024")) for _ in range(2)]
            model_settings["replicas"] = {str(number): {"url": one.url} for number, one in enumerate(servers)}
        else:
            binary, flags = llama_server_binary(), ("-c", "1024", "--parallel", "1", "--no-cont-batching")
            peers = [stack.enter_context(LlamaServer(binary, model, *flags)) for _ in range(2)]
            model_settings["replicas"] = {str(number): {"url": one.url} for number, one in enumerate(peers)}
        server = stack.enter_context(pool(tmp_path, model_settings.pop("replicas"), **model_settings))
        if kind != "workers":
            _wait_for_health(server, "ready", "ready")
        found = []
        for number in "01":
            server.client.post("/admin/drain", json={"model": "pooled", "replica": number}).raise_for_status()
            with ThreadPoolExecutor(4) as threads:
                found.append(list(threads.map(lambda job: _job(server, job), range(100))))
            server.client.post("/admin/undrain", json={"model": "pooled", "replica": number}).raise_for_status()
        assert found[0] == found[1]
        assert len(set(found[0])) > 50


def _job(server: Server, number: int) -> str:
    body = {"model": "pooled", "prompt": "Once upon a time", "n_predict": 8, "temperature": 1.5}
    response = server.client.post("/completion", json=body, headers={"X-Job-Id": f"job-{number}"})
    assert response.status_code == 200, response.text
    assert response.headers["x-job-id"] == response.json()["job_id"] == f"job-{number}"
    return str(response.json()["content"])


def _counted(server: Server, name: str, replica: str) -> list[float]:
    lines = server.client.get("/metrics").text.splitlines()
    return [
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(f"{name}{{") and f'replica="{replica}"' in line
    ]


def _wait_until_loaded(server: Server) -> None:
    """Wait until a health check after the load has found each replica ready, with its fingerprint."""

    def loaded() -> bool:
        return all(one["health"] == "ready" and one["fingerprint"] for one in replicas(server).values())

    wait_for(loaded, 60, "the models to be loaded")


def _wait_for_two_on_each(server: Server) -> None:
    """The load of a replica is scraped now and then, so it may be too high for a moment."""
    wait_for(lambda: [one["running"] for one in replicas(server).values()] == [2, 2], 30, "two streams on each replica")


def _wait_for_health(server: Server, *health: str) -> None:
    def healths() -> list[str]:
        return [one["health"] for one in replicas(server).values()]

    wait_for(lambda: healths() == list(health), 60, f"the replicas to be {health}")


_PROPS = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 4, "build_info": "b1-x"}


@contextmanager
def _failing_server(way: str = "is out of order", props: Any = _PROPS) -> Iterator[str]:
    """Reports that it is healthy and fails every request."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {
                "/health": {"status": "ok"},
                "/props": props,
                "/v1/models": {"data": [{"meta": None}]},
            }
            self._answer(200, answers.get(self.path.partition("?")[0], {}))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            match way:
                case "refuses":
                    self._answer(401, {"error": {"code": 401, "message": "who are you?"}})
                case "breaks off":
                    self.send_response(200)
                    self.send_header("content-length", "1000")
                    self.end_headers()
                case "falls silent":
                    over.wait()
                case "talks nonsense":
                    self._answer(200, "data: hello", raw=b"data: hello\n\n")
                case "never ends":
                    self.send_response(200)
                    self.end_headers()
                    with suppress(ConnectionError):
                        while not over.is_set():
                            self.wfile.write(b"data: " * 65536)
                case "loads":
                    self._answer(503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
                case _:
                    self._answer(500, {"error": {"code": 500, "message": "out of order", "type": "server_error"}})

        def _answer(self, status: int, content: Any, raw: bytes = b"") -> None:
            data = raw or json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()
