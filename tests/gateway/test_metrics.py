"""`/metrics` of a server: the values are correct, counters never decrease, and a scrape changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paddock.fleet import Catalogue, Fleet
from paddock.gateway.http.request_counts import HTTPCounts
from paddock.gateway.ops.metrics.collecting import collect
from paddock.gateway.ops.metrics.families import FAMILIES
from paddock.gateway.ops.metrics.processes import Processes
from paddock.gateway.ops.metrics.rendering import render
from paddock.types import ChatPrompt, GenerateRequest, Origin
from tests.options import new_model
from tests.server import Server, chat_body, client_of, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"
ENGINE = {"engine", "engine_version", "model_id", "pool", "replica"}


class Scrape:
    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        wanted = set(labels.items())
        return sum(value for (found, items), value in self.samples.items() if found == name and wanted <= set(items))

    def growing(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All samples that must never decrease."""
        names = {
            sample.name
            for family in self.families
            if family.type in ("counter", "histogram")
            for sample in family.samples
        }
        return {key: value for key, value in self.samples.items() if key[0] in names}


def scrape(server: Server) -> Scrape:
    response = server.client.get("/metrics")
    assert response.status_code == 200
    return Scrape(response.text)


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("metrics") / "config.json"
    models = {"quick": {"path": "fake:"}, "slow": {"path": "fake:delay=0.02"}}
    manager = {"models": models, "default_model": "quick", "memory_limit": "4GiB", "spare_worker": False}
    config.write_text(json.dumps({"model_manager": manager}))
    with Server("--config", str(config), "--metrics") as server:
        yield server


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_totals_equal_the_usage_that_clients_received(demo_model: Path) -> None:
    with Server("-m", str(demo_model), "-c", "2048", "-np", "4", "-a", "demo") as server:

        def ask(number: int) -> dict[str, int]:
            usage: dict[str, int] = server.chat(f"Count to {number % 7}.", max_tokens=4 + number % 5, seed=number)[
                "usage"
            ]
            return usage

        with ThreadPoolExecutor(5) as pool:
            usages = list(pool.map(ask, range(20)))
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        generated = sum(usage["completion_tokens"] for usage in usages)

        wait_for(lambda: scrape(server)("llamacpp:tokens_predicted_total") == generated, 20, "the worker's counts")
        seen = scrape(server)
        assert seen("paddock_prompt_tokens_total") == prompt
        assert seen("paddock_generated_tokens_total") == generated
        computed, reused = seen("llamacpp:prompt_tokens_total"), seen("llamacpp:prompt_tokens_cached_total")
        assert computed + reused == prompt
        assert seen("paddock_cached_prompt_tokens_total") == reused > 0
        assert seen("paddock_prefix_tokens_total", source="computed") == computed
        assert seen("llama_tokens_generated_total") == generated
        assert seen("llama_requests_total", endpoint=CHAT) == 20
        assert seen("paddock_requests_total", outcome="ok", key="anonymous") == 20
        for histogram in (
            "paddock_queue_seconds",
            "paddock_time_to_first_token_seconds",
            "llama_request_duration_seconds",
        ):
            assert seen(f"{histogram}_count") == 20
        assert seen("paddock_inter_token_seconds_count") == generated - 20
        assert seen("paddock_prefix_lookups_total") == 20
        assert seen("llamacpp:n_tokens_max") <= max(usage["total_tokens"] for usage in usages)
        assert 0 < seen("paddock_worker_own_memory_bytes") <= seen("paddock_worker_resident_memory_bytes")
        assert seen("paddock_worker_cpu_seconds_total") > 0


def test_every_metric_of_the_seeds_exists_with_its_labels(two_models: Server) -> None:
    two_models.chat("say: x", model="quick")
    seen = scrape(two_models)
    names = {family.name for family in seen.families}
    for name in (
        *("prompt_tokens", "tokens_predicted", "prompt_tokens_seconds", "predicted_tokens_seconds"),
        *("kv_cache_usage_ratio", "kv_cache_tokens", "requests_processing", "requests_deferred"),
    ):
        assert f"llamacpp:{name}" in names
    assert {
        "llama_requests",
        "llama_request_duration_seconds",
        "llama_tokens_generated",
        "llama_slots_processing",
    } <= names
    for family in seen.families:
        if family.name.startswith("llama"):
            assert all(set(sample.labels) >= ENGINE for sample in family.samples), family.name
    shown = {dict(labels).get("le") for name, labels in seen.samples if name == "llama_request_duration_seconds_bucket"}
    assert {"0.1", "0.5", "1.0"} <= shown


def test_declared_and_exported_metrics_are_the_same(two_models: Server) -> None:
    two_models.chat("say: x", model="quick")
    names = {family.name for family in scrape(two_models).families if not family.name.startswith("process_")}
    of_replicas = {name for name in FAMILIES if name.startswith("paddock_replica_")}  # this server has none
    of_gpus = {name for name in FAMILIES if name.startswith("paddock_gpu_")}  # this machine may have none
    of_libraries = {"paddock_libllama_info"}  # the fake engine has none
    of_batches = {name for name in FAMILIES if name.startswith("paddock_batch")}  # test_batches.py
    of_tools = {name for name in FAMILIES if name.startswith("paddock_mcp_")}  # test_mcp.py
    elsewhere = of_replicas | of_libraries | of_batches | of_tools
    declared = {name.removesuffix("_total") for name in FAMILIES.keys() - elsewhere}
    assert names - of_gpus == declared - of_gpus and names <= declared


def test_unknown_paths_and_methods_create_no_series(two_models: Server) -> None:
    before = len(scrape(two_models).samples)
    for number in range(20):
        two_models.client.get(f"/made-up/{number}")
        two_models.client.request(f"MADE{number}", "/health")
        two_models.client.post(CHAT, json=chat_body("x", model=f"made-up-{number}"))
    seen = scrape(two_models)
    assert seen("paddock_http_requests_total", route="unknown", status="404") >= 20
    assert len(seen.samples) < before + 100


def test_running_streams_and_requests_are_counted(two_models: Server) -> None:
    body = chat_body("say: " + "x" * 3000, model="slow", stream=True)
    with two_models.client.stream("POST", CHAT, json=body) as response:
        stream = events(response)
        next(stream)
        with client_of(two_models.url) as other:

            def has_counted() -> bool:
                seen = Scrape(other.get("/metrics").text)
                names = ("llamacpp:requests_processing", "llama_slots_processing")
                return seen("paddock_http_streams") == 1 and all(seen(name, model_id="slow") == 1 for name in names)

            wait_for(has_counted, 10, "the request in the metrics")
            assert Scrape(other.get("/metrics").text)("paddock_http_connections") >= 2
    wait_for(lambda: scrape(two_models)("paddock_http_streams") == 0, 10, "the stream to end")
    wait_for(
        lambda: scrape(two_models)("paddock_requests_total", model_id="slow", outcome="left") == 1,
        10,
        "the disconnect to be counted",
    )


def test_embeddings_are_counted() -> None:
    with Server("-m", "fake:", "--embedding") as server:
        usage = server.client.post("/v1/embeddings", json={"input": ["one", "three"]}).json()["usage"]
        wait_for(lambda: scrape(server)("llamacpp:prompt_tokens_total") == usage["prompt_tokens"], 10, "the counts")
        seen = scrape(server)
        assert seen("paddock_prompt_tokens_total") == usage["prompt_tokens"]
        assert seen("llama_requests_total", endpoint="/v1/embeddings") == 1


def test_usage_is_labelled_with_the_name_of_the_key() -> None:
    async def scenario() -> str:
        fleet = Fleet(Catalogue([new_model("m", "fake:", idle_timeout=0)]))
        try:
            model = fleet.catalogue.find("m")
            prompt = ChatPrompt([{"role": "user", "content": "say: hello"}])
            for key in ("alice", "bob", "alice"):
                started = await fleet.generate(model, GenerateRequest(prompt, origin=Origin(key=key)))
                assert [delta async for delta in started]
            return render(collect(fleet, HTTPCounts(), Processes(0, {}))).decode()
        finally:
            await fleet.close()

    seen = Scrape(asyncio.run(scenario()))
    assert seen("paddock_requests_total", key="alice", outcome="ok") == 2
    assert seen("paddock_requests_total", key="bob", outcome="ok") == 1
    assert seen("paddock_generated_tokens_total", key="alice") == 2 * seen("paddock_generated_tokens_total", key="bob")


# ── a scrape changes nothing ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_scrape_loads_no_model_and_resets_no_idle_timer(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    manager = {"models": {"a": {"path": "fake:"}, "b": {"path": "fake:"}}, "idle_timeout": 1, "spare_worker": False}
    config.write_text(json.dumps({"model_manager": manager}))
    with Server("--config", str(config)) as server:
        seen = scrape(server)
        assert {seen("paddock_model_state", model_id=name, state="unloaded") for name in "ab"} == {1.0}
        assert server.workers() == []
        server.chat("say: x", model="a")
        wait_for(
            lambda: scrape(server)("paddock_model_state", model_id="a", state="unloaded"),
            20,
            "the model to be unloaded",
        )
        assert scrape(server)("paddock_model_unloads_total", model_id="a") == 1
        assert scrape(server)("paddock_model_loads_total") == 1


def test_a_scrape_does_not_wait_for_a_worker() -> None:
    with Server("-m", "fake:") as server:
        server.chat("say: x")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            assert scrape(server)("paddock_model_state", state="loaded") == 1
            assert scrape(server)("paddock_requests_total", outcome="ok") == 1
        finally:
            os.kill(worker, signal.SIGCONT)


def test_the_header_has_the_start_of_the_server(two_models: Server) -> None:
    first, second = (two_models.client.get("/metrics").headers["process-start-time-unix"] for _ in range(2))
    assert first == second and 0 < int(first) <= time.time()


def test_metrics_can_be_disabled() -> None:
    with Server("-m", "fake:", "--no-metrics") as server:
        response = server.client.get("/metrics")
        assert response.status_code == 501
        assert "--metrics" in response.json()["error"]["message"]


# ── counters never decrease ──────────────────────────────────────────────────────────────────────────────────────────


def _counted(check: Callable[[], Scrape], crashes: float) -> bool:
    return check()("paddock_model_crashes_total", model_id="quick", reason="SIGKILL") == crashes


@full
def test_counters_survive_crashes_and_unloads_of_workers(two_models: Server) -> None:
    server = two_models
    before = scrape(server).growing()

    def check() -> Scrape:
        nonlocal before
        seen = scrape(server)
        after = seen.growing()
        for key, value in before.items():
            assert after.get(key, 0) >= value, key
        before = after
        return seen

    crashes = check()("paddock_model_crashes_total", model_id="quick", reason="SIGKILL")
    for number in range(1, 4):
        usage = server.chat("hello", model="quick", seed=1)["usage"]
        check()
        before_kill = check()("paddock_generated_tokens_total", model_id="quick")
        status = server.client.get("/admin/status").json()["models"]
        (pid,) = [model["pid"] for model in status if model["name"] == "quick"]
        os.kill(pid, signal.SIGKILL)
        wait_for(partial(_counted, check, crashes + number), 10, "the crash to be counted")
        assert server.chat("hello", model="quick", seed=1)["usage"]["total_tokens"] == usage["total_tokens"]
        assert check()("paddock_generated_tokens_total", model_id="quick") == before_kill + usage["completion_tokens"]
        counted = check()("llamacpp:tokens_predicted_total", model_id="quick")
        server.chat("hello", model="quick", seed=1)
        server.client.post("/admin/unload", json={"model": "quick"})
        unloaded = check()("llamacpp:tokens_predicted_total", model_id="quick")
        assert unloaded >= counted + usage["completion_tokens"], "a worker sends its last counts before it exits"
    assert check()("paddock_model_unloads_total", model_id="quick") >= 3
