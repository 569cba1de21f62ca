"""Traces: a span for each HTTP request, in it one for each generation, and in that one for each stage.

Made from what is known when a generation has ended; nothing is done for it while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise

from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.types import ASGIApp, Receive, Scope, Send

from paddock import __version__
from paddock.fleet import RequestRecord
from paddock.gateway.http.scope import HEALTH_PATHS, STATUS, TRACE_KIND, route_of

_SCOPE = context.create_key("paddock.scope")


class Tracing:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("paddock", __version__)

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> Tracing:
        """Configured by the environment."""
        named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        about = {"service.version": __version__} | ({} if named else {"service.name": "paddock"})
        provider = TracerProvider(resource=Resource.create(about))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application."""
        return partial(self._trace, app)

    async def _trace(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            return await app(scope, receive, send)
        parent = propagate.extract(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        )
        about = {"http.request.method": scope["method"], "url.path": scope["path"], "url.scheme": scope["scheme"]}
        span = self._tracer.start_span(scope["method"], parent, SpanKind.SERVER, about)

        within = context.set_value(_SCOPE, scope, trace.set_span_in_context(span, parent))
        token = context.attach(within)
        try:
            await app(scope, receive, send)
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            context.detach(token)
            if (status := scope.get(STATUS)) is not None:
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            span.update_name(f"{scope['method']} {route_of(scope)}")
            span.set_attribute("http.route", route_of(scope))
            span.end()

    def ended(self, record: RequestRecord) -> None:
        """A generation, an embedding or a ranking has ended, in the context of the HTTP request it was for."""
        if not trace.get_current_span().is_recording() or record.ended is None:
            return
        operation = _operation(record)
        begins = [*_stages(record), ("", record.ended)]
        # From the monotonic clock to Unix time in nanoseconds.
        ahead = time.time_ns() - time.monotonic_ns()
        stages = [(name, int(moment * 1e9) + ahead) for name, moment in begins]
        span = self._tracer.start_span(
            f"{operation} {record.model}", attributes=_about(record, operation), start_time=stages[0][1]
        )
        if record.failed:
            span.set_status(Status(StatusCode.ERROR, record.outcome))
        within = trace.set_span_in_context(span)
        for (name, begun), (_, ended) in pairwise(stages):
            self._tracer.start_span(name, within, start_time=begun).end(ended)
        span.end(stages[-1][1])


def _about(record: RequestRecord, operation: str) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "paddock",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.used.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.used.cached_tokens,
    }
    if record.origin.key:
        about["paddock.key"] = record.origin.key
    if record.replica:
        about["paddock.replica"] = record.replica
    if record.failed:
        about["error.type"] = record.outcome
    return about


def _stages(record: RequestRecord) -> Iterator[tuple[str, float]]:
    """Each stage that was reached, and its start. It ends when the next one starts."""
    yield "wait for model", record.began
    if record.ready is None:
        return
    if record.accepted is None:
        yield ("compute" if record.kind != "generation" else "prepare prompt"), record.ready
        return
    yield "prepare prompt", record.ready
    yield "queue", record.accepted
    if record.first is None or record.ended is None:
        return
    # The worker measures the start of prefill and reports it at the end.
    first = max(record.ended - record.timings.generation, record.accepted) if record.timings else record.first
    yield "prompt", max(first - record.timings.prompt if record.timings else first, record.accepted)
    yield "generation", first


def _operation(record: RequestRecord) -> str:
    if record.kind != "generation":
        return "embeddings" if record.kind == "embedding" else "rerank"
    scope = context.get_value(_SCOPE)
    return str(scope.get(TRACE_KIND, "text_completion")) if isinstance(scope, dict) else "text_completion"
