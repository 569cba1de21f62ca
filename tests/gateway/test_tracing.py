"""Traces of a server, as a collector receives them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from paddock.gateway.ops.telemetry import open_tracing
from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

pytest.importorskip("opentelemetry.sdk", reason="paddock-llm[otel] is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


class Collector:
    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                received = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for resource in received.resource_spans:
                    collector.resources.append(attributes(resource.resource))
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(what: Any) -> dict[str, Any]:
    return {item.key: item.value.string_value or item.value.int_value for item in what.attributes}


@contextmanager
def _collecting() -> Iterator[Collector]:
    collector = Collector()
    with collector.server:
        serving = threading.Thread(target=collector.server.serve_forever)
        serving.start()
        try:
            yield collector
        finally:
            collector.server.shutdown()
            serving.join()


def test_each_stage_has_a_span_in_the_trace_of_the_caller() -> None:
    with _collecting() as collector, Server("-m", "fake:delay=0.002", env=collector.environment) as server:
        header = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        body = chat_body("hello", seed=1, max_tokens=20)
        answer = server.client.post("/v1/chat/completions", json=body, headers=header)
        wait_for(lambda: len(collector.spans) >= 7, 20, "the spans")
        (request,) = collector.named("POST /v1/chat/completions")
        assert request.trace_id.hex() == TRACE
        assert request.parent_span_id.hex() == CALLER
        assert attributes(request)["http.response.status_code"] == 200
        (chat,) = collector.named("chat fake")
        assert chat.parent_span_id == request.span_id
        found, usage = attributes(chat), answer.json()["usage"]
        assert found["gen_ai.operation.name"] == "chat"
        assert found["gen_ai.request.model"] == "fake"
        assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        stages = [span for span in collector.spans if span.parent_span_id == chat.span_id]
        assert [span.name for span in stages] == [
            *("wait for model", "prepare prompt", "queue", "prompt", "generation"),
        ]
        # Each stage starts when the previous one ends.
        assert stages[0].start_time_unix_nano == chat.start_time_unix_nano
        for before, after in pairwise(stages):
            assert before.end_time_unix_nano == after.start_time_unix_nano
        assert stages[-1].end_time_unix_nano == chat.end_time_unix_nano
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        assert collector.resources[0]["service.name"] == "paddock"


def test_streams_errors_and_other_routes_have_spans() -> None:
    with _collecting() as collector:
        environment = collector.environment | {"OTEL_SERVICE_NAME": "stable"}
        with Server("-m", "fake:", env=environment) as server:
            body = chat_body("say: hello", stream=True)
            with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
                assert list(events(response))
            server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            server.client.post("/v1/chat/completions", json=chat_body("crash: now"))
            server.client.get("/metrics")
        # The server sends the remaining spans when it stops.
        assert collector.resources[0]["service.name"] == "stable"
        assert len(collector.named("POST /v1/chat/completions")) == 2
        completed, crashed = collector.named("chat fake")
        assert "error.type" not in attributes(completed)
        assert attributes(crashed)["error.type"] == "worker_crashed"
        assert attributes(collector.named("text_completion fake")[0])["gen_ai.usage.output_tokens"] == 2
        assert not collector.named("GET /metrics")


def test_an_unsampled_trace_is_not_exported() -> None:
    with _collecting() as collector:
        with Server("-m", "fake:", env=collector.environment) as server:
            header = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
            server.client.post("/v1/chat/completions", json=chat_body("say: x"), headers=header)
        assert not collector.spans


@full
def test_without_its_variables_opentelemetry_is_not_imported() -> None:
    """The SDK. FastAPI itself imports the API package if it is installed."""
    code = (
        "import sys, paddock.gateway, paddock.gateway.ops.telemetry as t; assert t.open_tracing({}) is None; "
        "assert not any(name.startswith('opentelemetry.sdk') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_traces_are_disabled_or_not_possible(environ: dict[str, str]) -> None:
    assert open_tracing(environ) is None
