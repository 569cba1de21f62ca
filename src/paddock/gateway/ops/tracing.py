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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paddock import __version__
from paddock.fleet import Journey
from paddock.gateway.ops.metrics import route_of

_QUIET = frozenset({"/health", "/v1/health", "/metrics"})
_CHATS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
_PATH = context.create_key("paddock.path")


class Tracing:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("paddock", __version__)

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> Tracing:
        """As the environment has it: where to, how much, and under which name."""
        named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        about = {"service.version": __version__} | ({} if named else {"service.name": "paddock"})
        provider = TracerProvider(resource=Resource.create(about))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def close(self) -> None:
        """Send what has not been sent yet."""
        self._provider.shutdown()

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """The same application, traced."""
        return partial(self._trace, app)

    async def _trace(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET:
            return await app(scope, receive, send)
        parent = propagate.extract(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        )
        about = {"http.request.method": scope["method"], "url.path": scope["path"], "url.scheme": scope["scheme"]}
        span = self._tracer.start_span(scope["method"], parent, SpanKind.SERVER, about)

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            await send(message)

        within = context.set_value(_PATH, scope["path"], trace.set_span_in_context(span, parent))
        token = context.attach(within)
        try:
            await app(scope, receive, watch)
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            context.detach(token)
            span.update_name(f"{scope['method']} {route_of(scope)}")
            span.set_attribute("http.route", route_of(scope))
            span.end()

    def ended(self, journey: Journey) -> None:
        """A generation, an embedding or a ranking has ended, in the context of the HTTP request it was for."""
        if not trace.get_current_span().is_recording() or journey.ended is None:
            return
        operation = _operation(journey)
        begins = [*_stages(journey), ("", journey.ended)]
        # The monotonic clock's moments, in nanoseconds of the other one.
        ahead = time.time_ns() - time.monotonic_ns()
        stages = [(name, int(moment * 1e9) + ahead) for name, moment in begins]
        span = self._tracer.start_span(
            f"{operation} {journey.model}", attributes=_about(journey, operation), start_time=stages[0][1]
        )
        if journey.failed:
            span.set_status(Status(StatusCode.ERROR, journey.outcome))
        within = trace.set_span_in_context(span)
        for (name, begun), (_, ended) in pairwise(stages):
            self._tracer.start_span(name, within, start_time=begun).end(ended)
        span.end(stages[-1][1])


def _about(journey: Journey, operation: str) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "paddock",
        "gen_ai.request.model": journey.model,
        "gen_ai.response.model": journey.model,
        "gen_ai.usage.input_tokens": journey.prompt_tokens,
        "gen_ai.usage.output_tokens": journey.used.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": journey.used.cached_tokens,
    }
    if journey.origin.key:
        about["paddock.key"] = journey.origin.key
    if journey.replica:
        about["paddock.replica"] = journey.replica
    if journey.failed:
        about["error.type"] = journey.outcome
    return about


def _stages(journey: Journey) -> Iterator[tuple[str, float]]:
    """Each stage that was reached, and when it began. Its end is where the next begins."""
    yield "wait for model", journey.began
    if journey.ready is None:
        return
    if journey.accepted is None:
        yield ("compute" if journey.kind != "generation" else "prepare prompt"), journey.ready
        return
    yield "prepare prompt", journey.ready
    yield "queue", journey.accepted
    if journey.first is None or journey.ended is None:
        return
    # The worker knows best when it began with the prompt, and tells at the end.
    first = max(journey.ended - journey.timings.generation, journey.accepted) if journey.timings else journey.first
    yield "prompt", max(first - journey.timings.prompt if journey.timings else first, journey.accepted)
    yield "generation", first


def _operation(journey: Journey) -> str:
    if journey.kind != "generation":
        return "embeddings" if journey.kind == "embedding" else "rerank"
    return "chat" if str(context.get_value(_PATH)).startswith(_CHATS) else "text_completion"
