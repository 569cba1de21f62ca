"""A real Prometheus scrapes a real server under load; what the dashboard and the alerts ask it, it can answer."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddock.gateway.ops.metrics.collecting import Points, add_gpus
from paddock.gateway.ops.metrics.nvml import Gpu
from paddock.gateway.ops.metrics.rendering import CONTENT_TYPE, render
from tests.server import Server, chat_body, wait_for
from tests.tiers import full

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "paddock.json").read_text("utf-8"))
OPERATOR, GUEST = "operator-5d1c9f0e7a2b", "guest-8e3b6a4c1d2f"
NAME_GIVEN = "metric names should not contain ':'"

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed (Debian: apt-get install prometheus)",
)


class Prometheus:
    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=f"{url}/api/v1", timeout=20)

    def get(self, path: str, **params: str) -> Any:
        response = self.client.get(path, params=params)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def values(self, query: str) -> list[float]:
        """Those of an instant query that are numbers."""
        found = [float(sample["value"][1]) for sample in self.get("/query", query=query)["result"]]
        return [value for value in found if not math.isnan(value)]


@contextmanager
def _prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """One with our configuration, but for the targets and how often it looks."""
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8")
    assert config.count('"127.0.0.1:8080"') == 1
    config = config.replace('"127.0.0.1:8080"', ", ".join(f'"{each}"' for each in targets)).replace(": 15s", ": 1s")
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        try:

            def scraping() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    ready = prometheus.client.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200
                    return ready and prometheus.values("paddock_build_info") == [1.0]
                except httpx.TransportError:
                    return False

            wait_for(scraping, 60, "the first scrape")
            yield prometheus
        finally:
            prometheus.client.close()
            process.terminate()


@contextmanager
def _machine_with_a_gpu() -> Iterator[str]:
    """The address of a page that shows what a server on such a machine would, of its GPUs."""
    points = Points()
    add_gpus(points, [Gpu(0, "NVIDIA H200", "GPU-5a", 0.87, 9 * 2**30, 141 * 2**30)])
    text = render(points)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _be_refused(server: Server) -> None:
    """Without a key, with one that may not, and once too often."""
    guest = {"Authorization": f"Bearer {GUEST}"}
    body = chat_body("hello", model="nobody")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 401
        assert client.get("/admin/status", headers=guest).status_code == 403
        statuses = [client.post("/v1/chat/completions", json=body, headers=guest).status_code for _ in range(2)]
    assert statuses == [404, 429]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen a server under load, with crashes, an error, refusals and an unload."""
    folder = tmp_path_factory.mktemp("prometheus")
    models = {"one": {"path": "fake:delay=0.005"}, "two": {"path": "fake:"}}
    keys = {"operator": {"key": OPERATOR, "admin": True}, "guest": {"key": GUEST, "requests_per_minute": 1}}
    config = {"server": {"keys": keys}, "model_manager": {"models": models, "default_model": "one"}}
    (folder / "config.json").write_text(json.dumps(config))
    with Server("--config", str(folder / "config.json")) as server, _machine_with_a_gpu() as gpu:
        server.client.headers["Authorization"] = f"Bearer {OPERATOR}"
        with _prometheus(folder, server.url.removeprefix("http://"), gpu) as prometheus:
            _be_refused(server)
            for event in ("crash", "unload", "nothing"):
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(lambda number: server.chat(f"hello {number}", max_tokens=50), range(12)))
                server.chat("hello", model="two", max_tokens=5)
                if event == "crash":
                    status = server.client.get("/admin/status").json()["models"]
                    os.kill(next(model["pid"] for model in status if model["name"] == "one"), signal.SIGKILL)
                elif event == "unload":
                    crashing = chat_body("crash: now", model="two")
                    assert server.client.post("/v1/chat/completions", json=crashing).status_code == 503
                    server.client.post("/admin/unload", json={"model": "all"})
            wait_for(
                lambda: (
                    prometheus.values("sum(paddock_requests_total)") == [40.0]
                    and len(prometheus.values("paddock_worker_own_memory_bytes")) == 2
                ),
                30,
                "the last request to be seen",
            )
            yield prometheus


def _panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


@full
@pytest.mark.parametrize(("panel", "query"), [pytest.param(*panel, id=panel[0]) for panel in _panels()])
def test_every_panel_shows_something(prometheus: Prometheus, panel: str, query: str) -> None:
    for variable, value in (("$__rate_interval", "5m"), ("$instance", ".*"), ("$model", ".*")):
        query = query.replace(variable, value)
    assert "$" not in query
    query = query.replace("[1m]", "[5m]")  # the crash of a minute ago
    wait_for(lambda: prometheus.values(query), 20, f"an answer to {query}")


@full
def test_every_alert_is_understood_and_has_something_to_judge(prometheus: Prometheus) -> None:
    (group,) = prometheus.get("/rules")["groups"]
    assert len(group["rules"]) >= 8
    for rule in group["rules"]:
        wait_for(lambda name=rule["name"]: _health(prometheus, name) == "ok", 20, "the rule's turn")  # type: ignore[misc]
        prometheus.values(rule["query"])
        judged = re.split(r"\s(?:>|<|==)\s", rule["query"])[0]
        assert prometheus.values(judged), judged


def _health(prometheus: Prometheus, name: str) -> str:
    (group,) = prometheus.get("/rules")["groups"]
    (health,) = [rule["health"] for rule in group["rules"] if rule["name"] == name]
    return str(health)


@full
def test_the_crash_and_the_unload_are_seen(prometheus: Prometheus) -> None:
    assert prometheus.values('paddock_model_crashes_total{model_id="one", reason="SIGKILL"}') == [1.0]
    assert prometheus.values('sum(increase(paddock_model_crashes_total{reason="SIGKILL"}[5m]))')[0] > 0
    assert prometheus.values('paddock_model_unloads_total{model_id="one"}') == [1.0]
    assert prometheus.values("sum(resets(llamacpp:tokens_predicted_total[5m]))") == [0.0]


def test_promtool_finds_nothing_but_llama_servers_colons(fake_server: Server) -> None:
    fake_server.chat("say: x")
    text = fake_server.client.get("/metrics").text
    found = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    complaints = [line.split(" ", 1) for line in (found.stdout + found.stderr).splitlines() if line]
    assert complaints
    assert all(name.startswith("llamacpp:") and what == NAME_GIVEN for name, what in complaints), complaints


@pytest.mark.parametrize(("what", "file"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_what_is_deployed(what: str, file: str) -> None:
    subprocess.run(["promtool", "check", what, file], cwd=DEPLOY / "prometheus", check=True, capture_output=True)


_HTTP = 'paddock_http_requests_total{instance="a", method="POST", route="/v1/chat/completions", status="%s"}'
_GPU = '%s{instance="a", gpu="0", name="NVIDIA H200", uuid="GPU-5a"}'
_BUSY = 'llamacpp:requests_processing{instance="a", model_id="m"}'


@pytest.mark.parametrize(
    ("alert", "series", "summary"),
    [
        # Two refused requests in a second; a person who mistypes a key every minute.
        ("PaddockRefusedKeys", {_HTTP % 401: "0+120x30"}, "a refuses 2.0 requests a second with a bad key (401, 403)"),
        ("PaddockRefusedKeys", {_HTTP % 403: "0+120x30"}, "a refuses 2.0 requests a second with a bad key (401, 403)"),
        ("PaddockRefusedKeys", {_HTTP % 401: "0+1x30", _HTTP % 200: "0+600x30"}, None),
        (
            "PaddockTooManyRequests",
            {_HTTP % 429: "0+30x30", _HTTP % 200: "0+30x30"},
            "a refuses 50% of its requests as too many (429)",
        ),
        ("PaddockTooManyRequests", {_HTTP % 429: "0+1x30", _HTTP % 200: "0+30x30"}, None),
        (
            "PaddockGpuIdle",
            {_GPU % "paddock_gpu_utilization_ratio": "0x30", _BUSY: "2x30"},
            "a answers requests, but its GPUs are idle",
        ),
        ("PaddockGpuIdle", {_GPU % "paddock_gpu_utilization_ratio": "0.8x30", _BUSY: "2x30"}, None),
        ("PaddockGpuIdle", {_GPU % "paddock_gpu_utilization_ratio": "0x30", _BUSY: "0x30"}, None),
        (
            "PaddockGpuMemoryFull",
            {_GPU % "paddock_gpu_memory_used_bytes": "99x30", _GPU % "paddock_gpu_memory_total_bytes": "100x30"},
            "GPU 0 of a has 99% of its memory in use",
        ),
        (
            "PaddockGpuMemoryFull",
            {_GPU % "paddock_gpu_memory_used_bytes": "90x30", _GPU % "paddock_gpu_memory_total_bytes": "100x30"},
            None,
        ),
    ],
)  # fmt: skip
def test_an_alert_fires_when_it_should_and_only_then(
    tmp_path: Path, alert: str, series: dict[str, str], summary: str | None
) -> None:
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    labels = {"instance": "a", "severity": "warning"}
    if alert == "PaddockGpuMemoryFull":
        labels |= {"gpu": "0", "name": "NVIDIA H200", "uuid": "GPU-5a"}
    fired = [{"exp_labels": labels, "exp_annotations": {"summary": summary}}] if summary else []
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "30m", "alertname": alert, "exp_alerts": fired}],
    }
    written = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "case.yml").write_text(json.dumps(written))  # JSON is YAML
    done = subprocess.run(
        ["promtool", "test", "rules", "case.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
