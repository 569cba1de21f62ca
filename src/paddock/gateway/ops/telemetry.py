"""Enables traces by OpenTelemetry's own variables. Without them its SDK is not imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from paddock.gateway.ops.tracing import Tracing

_log = structlog.get_logger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER = "OTEL_TRACES_EXPORTER"


def open_tracing(environ: Mapping[str, str] = os.environ) -> Tracing | None:
    """None if traces are disabled, or with a warning if they are not possible."""
    if not _wanted(environ):
        return None
    if problem := _problem(environ):
        _log.warning("no traces", problem=problem)
        return None
    try:
        from paddock.gateway.ops.tracing import Tracing
    except ImportError:
        _log.warning("no traces", problem="OpenTelemetry is not installed: pip install 'paddock-llm[otel]'")
        return None
    return Tracing.open(environ)


def _wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get(_EXPORTER) == "none":
        return False
    return any(environ.get(name) for name in (*_ENDPOINTS, _EXPORTER))


def _problem(environ: Mapping[str, str]) -> str:
    if (exporter := environ.get(_EXPORTER, "otlp")) != "otlp":
        return f"{_EXPORTER}={exporter}: only otlp is supported"
    for name in _PROTOCOLS:
        if environ.get(name, "http/protobuf") != "http/protobuf":
            return f"{name}={environ[name]}: only http/protobuf is supported"
    return ""
