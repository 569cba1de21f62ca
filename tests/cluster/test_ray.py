"""`paddock cluster` on a real Ray cluster of two nodes, over HTTP."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.cluster.nodes import Cluster
from tests.forking import run_command
from tests.gateway.test_batches import chat_line, finished, results, submit
from tests.server import chat_body, events, wait_for
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(600)]

CHAT = "/v1/chat/completions"
MODELS: dict[str, Any] = {
    # One replica, up to three under load. An answer takes so long that most of the clients' requests are there at once
    # even if the machine is busy: else the load would depend on the machine.
    "chat": {
        "path": "fake:delay=0.03",
        "n_threads": 1,
        "parallel": 2,
        "cluster": {
            "max_replicas": 3, "cpus": 0.2, "memory": "256M", "upscale_delay": 1, "downscale_delay": 3,
        },
    },
    # One on each node: two do not fit on one.
    "pair": {
        "path": "fake:delay=0.002",
        "n_threads": 1,
        "parallel": 4,
        "deterministic": True,
        "cluster": {"min_replicas": 2, "cpus": 1.2, "memory": "256M"},
    },
    "narrow": {
        "path": "fake:delay=0.02",
        "n_threads": 1,
        "parallel": 1,
        "max_queue": 1,
        "cluster": {"cpus": 0.1, "memory": "256M"},
    },
    "vectors": {"path": "fake:", "embedding": True, "cluster": {"cpus": 0.1, "memory": "256M"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        output = cluster.deploy(MODELS, gateways=2)
        assert f"Serving on {cluster.url}" in output
        wait_for(lambda: len(cluster.replicas("pair")) == 2, 60, "a replica on each node")
        yield cluster


def test_openai_client(cluster: Cluster) -> None:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        assert {model.id for model in client.models.list()} == set(MODELS)
        question: Any = [{"role": "user", "content": "say: hello"}]
        answer = client.chat.completions.create(model="chat", messages=question)
        assert answer.choices[0].message.content == "hello"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6
        stream = client.chat.completions.create(model="pair", messages=question, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "hello"
        assert len(client.embeddings.create(model="vectors", input=["one", "two"]).data) == 2
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="chat", messages=[])
        assert refused.value.param == "messages"
        with pytest.raises(openai.BadRequestError) as too_long:
            client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "x" * 100_000}])
        assert too_long.value.code == "context_length_exceeded"


def test_receipts(cluster: Cluster, tmp_path: Path) -> None:
    """The replica knows its model and library, the gateway makes the receipt. Nodes differ only if they do."""
    body = chat_body("say: hello") | {"model": "pair", "receipt": True}
    with cluster.client() as client:
        replies = [client.post(CHAT, json=body | {"job_id": f"job-{number}"}).json() for number in range(4)]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies), "utf-8")
    done = run_command("verify", str(tmp_path / "replies.jsonl"), "--server", cluster.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 computed again: 4 identical, 0 different" in done.stdout and "differs between" not in done.stdout


def test_several_prompts_in_a_request(cluster: Cluster) -> None:
    """Their calls wait for a replica at the same time."""
    prompts = [f"Question {number}" for number in range(8)]
    with cluster.client() as client:
        response = client.post("/v1/completions", json={"model": "pair", "prompt": prompts, "max_tokens": 4})
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == 8


def test_deploy_needs_the_token(cluster: Cluster) -> None:
    refused = cluster.run("status", token="fedcba9876543210" * 4)
    assert refused.returncode == 1
    assert "needs RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN" in refused.stderr


def test_tokenize_and_slots(cluster: Cluster) -> None:
    with cluster.client() as client:
        body = {"model": "chat", "content": "abc"}
        assert client.post("/tokenize", json=body).json() == {"tokens": [97, 98, 99]}
        assert len(client.get("/slots", params={"model": "pair"}).json()) == 8
        assert client.get("/props", params={"model": "pair"}).json()["total_slots"] == 8
        health = client.get("/health", headers={"x-request-id": "my-own"})
        assert health.json()["model_loaded"]
        assert health.headers.get_list("x-request-id") == ["my-own"]
        refused = client.post("/admin/unload", json={"model": "chat"})
        assert refused.status_code == 501
        assert "the cluster" in refused.json()["error"]["message"]
        refused = client.post("/admin/reload")
        assert refused.status_code == 400
        assert "paddock cluster deploy" in refused.json()["error"]["message"]


def test_deterministic_on_both_nodes(cluster: Cluster) -> None:
    body = {"model": "pair", "prompt": "Tell me", "max_tokens": 12, "temperature": 1.5}
    with cluster.client() as client:
        answers = {
            client.post("/v1/completions", json=body, headers={"x-job-id": "job-1"}).json()["choices"][0]["text"]
            for _ in range(6)
        }
        assert len(answers) == 1
    replicas = cluster.replicas("pair")
    assert len({replica["node"] for replica in replicas}) == 2
    # Each gateway checks the replicas by itself, and any of them may answer.
    wait_for(
        lambda: all(replica["fingerprint"] for replica in cluster.replicas("pair")), 60, "the fingerprints of both"
    )
    assert len({replica["fingerprint"] for replica in cluster.replicas("pair") if replica["fingerprint"]}) == 1


def test_prefix_routing(cluster: Cluster) -> None:
    """Most of each prompt is cached, although each gateway remembers prefixes on its own."""
    cached = prompt = 0
    with cluster.client() as client:
        for turn in range(6):
            for user in range(4):
                text = f"say: {user} " + "".join(f"{user}{number:03}" for number in range(60 * (turn + 1)))
                usage = client.post(CHAT, json=chat_body(text, model="pair", max_tokens=1)).json()["usage"]
                if turn > 1:  # both gateways have seen every conversation
                    cached += usage["prompt_tokens_details"]["cached_tokens"]
                    prompt += 240 * turn
    assert cached > 0.7 * prompt


def _live(cluster: Cluster, model: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A model and its prefixes in the first events of the live view of any gateway."""
    states: list[dict[str, Any]] = []
    prefixes: list[dict[str, Any]] = []
    with cluster.client() as client, client.stream("GET", "/live") as response:
        for kind, data in events(response):
            found = json.loads(data)
            if kind == "state":
                states.append(next(one for one in found["models"] if one["id"] == model))
                if len(states) == 2:
                    break
            elif kind == "prefixes" and found["model"] == model:
                prefixes = found["prefixes"]
    return states[0], prefixes


def test_replicas_and_their_prefixes_in_the_live_view(cluster: Cluster) -> None:
    """Each gateway shows the prompts that came through it. Requests avoid a gateway with an open stream."""
    names = {replica["name"] for replica in cluster.replicas("pair")}
    body = chat_body("say: " + "the same beginning " * 30, model="pair", max_tokens=1)
    homes: set[str] = set()

    def is_shown() -> bool:
        with cluster.client() as client:
            assert client.post(CHAT, json=body).status_code == 200
        model, prefixes = _live(cluster, "pair")
        replicas = {one["name"]: (one["kind"], one["state"], one["slots"]) for one in model["replicas"]}
        homes.update(name for part in prefixes for name, share in part["held"].items() if share == 1)
        assert all(one["place"].startswith("node ") for one in model["replicas"])
        return bool(homes) and replicas == dict.fromkeys(names, ("ray", "ready", 4))

    wait_for(is_shown, 60, "the replicas and a prefix")
    assert homes <= names


def test_replica_metrics(cluster: Cluster) -> None:
    def page() -> str:
        return httpx.get(f"{cluster.url}/metrics", timeout=200).text

    names = [replica["name"] for replica in cluster.replicas("pair")]
    for name in names:
        labels = f'model_id="pair",pool="pair",replica="{name}"'
        ready = f'paddock_replica_health{{health="ready",{labels}}} 1.0'
        wait_for(lambda ready=ready: ready in page(), 30, "the replica to be ready")  # type: ignore[misc]
        wait_for(
            lambda labels=labels: any(  # type: ignore[misc]
                line.startswith("llamacpp:prompt_tokens_total") and labels in line and not line.endswith(" 0.0")
                for line in page().splitlines()
            ),
            30,
            "its counters",
        )


def test_a_disconnect_frees_the_slot(cluster: Cluster) -> None:
    def busy() -> int:
        with cluster.client() as client:
            return sum(slot["is_processing"] for slot in client.get("/slots", params={"model": "pair"}).json())

    with cluster.client() as client:
        body = chat_body("say: " + "x" * 3000, model="pair", stream=True)
        with client.stream("POST", CHAT, json=body) as response:
            stream = events(response)
            next(stream)
            wait_for(lambda: busy() == 1, 20, "a busy slot")
        wait_for(lambda: busy() == 0, 20, "the slot to be idle")


def test_full_queue_is_429(cluster: Cluster) -> None:
    """The queue of the replica or of the gateway is full."""

    def ask(number: int) -> httpx.Response:
        with cluster.client() as client:
            return client.post(CHAT, json=chat_body(f"say: {number} " + "z" * 60, model="narrow"))

    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(ask, range(16)))
    refused = [response for response in responses if response.status_code != 200]
    assert refused
    assert len(refused) < len(responses)
    for response in refused:
        assert response.status_code == 429, response.text
        assert response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1


class Load:
    """Clients that send requests in a loop; counts answers and failures."""

    def __init__(self, cluster: Cluster, model: str, clients: int) -> None:
        self._cluster, self._model, self._clients = cluster, model, clients
        self.answered = 0
        self.failed: list[str] = []
        self._over = threading.Event()

    def __enter__(self) -> Load:
        self._pool = ThreadPoolExecutor(self._clients)
        self._futures = [self._pool.submit(self._ask, number) for number in range(self._clients)]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for future in self._futures:
            future.result()

    def _ask(self, number: int) -> None:
        body = chat_body(f"say: {number} " + "y" * 40, model=self._model, stream=True)
        with self._cluster.client() as client:
            while not self._over.is_set():
                if (failure := self._failure(client, body)) is None:
                    self.answered += 1
                else:
                    self.failed.append(failure)
                    self._over.wait(0.2)  # a client waits before it retries

    def _failure(self, client: httpx.Client, body: dict[str, Any]) -> str | None:
        try:
            with client.stream("POST", CHAT, json=body) as response:
                if response.status_code >= 500 and not response.headers["content-type"].startswith("application/json"):
                    return f"disconnected by the proxy: {response.status_code}"
                if response.status_code != 200:
                    return response.read().decode()
                last = list(events(response))[-1][1]
                return None if last == "[DONE]" else last
        except httpx.TransportError as error:
            return f"disconnected: {error!r}"


def _ready(cluster: Cluster, model: str) -> int:
    """As reported by a gateway. Each of them checks the replicas by itself."""
    page = httpx.get(f"{cluster.url}/metrics", timeout=200).text
    return page.count(f'paddock_replica_health{{health="ready",model_id="{model}"')


def test_autoscaling(cluster: Cluster) -> None:
    wait_for(lambda: len(cluster.replicas("chat")) == 1, 90, "one replica without load")
    with Load(cluster, "chat", 12) as load:
        wait_for(lambda: len(cluster.replicas("chat")) == 3, 90, "three replicas")
        before = load.answered
        wait_for(lambda: load.answered > before + 30, 60, "answers from all three")
        wait_for(lambda: _ready(cluster, "chat") == 3, 60, "three ready replicas")
    assert load.failed == []
    with Load(cluster, "chat", 1) as load:
        wait_for(lambda: len(cluster.replicas("chat")) == 1, 90, "one replica again")
    assert load.failed == [], "removed replicas finish their requests"


def test_upgrade_under_load(cluster: Cluster) -> None:
    before = {replica["name"] for replica in cluster.replicas("chat")}
    pair = {replica["name"] for replica in cluster.replicas("pair")}
    changed = json.loads(json.dumps(MODELS))
    changed["chat"]["n_ctx"] = 4096
    with Load(cluster, "chat", 2) as load:
        output = cluster.deploy(changed, gateways=2)
        wait_for(lambda: not before & {replica["name"] for replica in cluster.replicas("chat")}, 60, "new replicas")
    assert "paddock-chat: deployed" in output
    assert "paddock-pair: unchanged" in output
    assert load.failed == []
    assert load.answered > 0
    assert {replica["name"] for replica in cluster.replicas("pair")} == pair
    with cluster.client() as client:

        def n_ctx() -> int:
            props = client.get("/props", params={"model": "chat"}).json()
            return int(props["default_generation_settings"]["n_ctx"])

        wait_for(lambda: n_ctx() == 4096, 30, "the new settings")
    wait_for(
        lambda: "paddock-chat: running; replicas: 1 running" in cluster.paddock("status", "--config", "cluster.json"),
        60,
        "one replica in the status",
    )


def test_a_batch_on_both_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """With one gateway and a data folder. A replica is killed: its lines are run again, and all receipts verify."""
    with cluster.client() as plain:
        refused = plain.get("/v1/batches")
    assert refused.status_code == 501 and "server.data_dir" in refused.json()["error"]["message"]
    cluster.deploy(MODELS, data_dir=tmp_path / "data", gateways=1)
    count = 60
    systems = [f"group {n}: " + "words of a long system text " * 12 for n in range(6)]
    lines = [chat_line(f"id-{n}", f"say: answer {n}", systems[n % 6], model="pair") for n in range(count)]
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=5) as client:
        wait_for(lambda: len(cluster.replicas("pair")) == 2, 60, "both replicas")
        id = submit(client, lines, extra_body={"deterministic": True}).id

        def done() -> int:
            counts = client.batches.retrieve(id).request_counts
            return counts.completed if counts is not None else 0

        wait_for(lambda: done() >= 8, 60, "some lines")
        wait_for(lambda: cluster.replicas("pair")[0]["pid"], 30, "the process of a replica")
        os.kill(cluster.replicas("pair")[0]["pid"], signal.SIGKILL)
        batch = finished(client, id, 120)
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed) == ("completed", count)
        assert results(client, batch.output_file_id).keys() == {f"id-{n}" for n in range(count)}
        assert batch.output_file_id is not None
        (tmp_path / "output.jsonl").write_bytes(client.files.content(batch.output_file_id).content)
    verified = run_command("verify", str(tmp_path / "output.jsonl"), "--server", cluster.url)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    cluster.deploy(MODELS, gateways=2)
    wait_for(lambda: len(cluster.replicas("pair")) == 2, 60, "both replicas")


def _replicas_now(cluster: Cluster, model: str) -> int | None:
    """None if the request went to a gateway on the lost node: Ray's proxy answers it with a text."""
    try:
        return len(cluster.replicas(model))
    except (httpx.HTTPError, json.JSONDecodeError):
        return None


def test_lost_node(cluster: Cluster) -> None:
    """Runs last: the cluster has one node afterwards."""
    with Load(cluster, "pair", 4) as load:
        wait_for(lambda: load.answered > 20, 60, "answers from both")
        cluster.lose_second_node()
        wait_for(lambda: _replicas_now(cluster, "pair") == 1, 60, "the lost node to be detected")
        before = load.answered
        wait_for(lambda: load.answered > before + 20, 60, "answers from the other")
    # Streams on the lost node end with an error; streams through its gateway end without one.
    for failure in load.failed:
        assert '"code":"replica_lost"' in failure or failure.startswith("disconnected"), failure
    question: Any = [{"role": "user", "content": "say: still here"}]
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=5) as client:
        for model in ("pair", "chat"):
            answer = client.chat.completions.create(model=model, messages=question)
            assert answer.choices[0].message.content == "still here"
