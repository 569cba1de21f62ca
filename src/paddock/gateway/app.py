"""The application, assembled from explicit parts; no globals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from paddock import __version__
from paddock.config import ServerSettings
from paddock.errors import PaddockError
from paddock.fleet import Fleet
from paddock.gateway.auth.audit import AuditLog
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.limits import HEADERS
from paddock.gateway.auth.origin_guard import Browsers
from paddock.gateway.auth.origins import CrossOrigin, Origins
from paddock.gateway.auth.permissions import needs_of_endpoints, needs_of_routes
from paddock.gateway.auth.usage import UsageBook, usage_routes
from paddock.gateway.dialects.admin import admin_routes
from paddock.gateway.dialects.anthropic import anthropic_routes
from paddock.gateway.dialects.llama import native_routes
from paddock.gateway.dialects.openai import embedding_routes, openai_routes, response_routes
from paddock.gateway.dialects.openai.models import model_routes
from paddock.gateway.http.access_log import AccessLog
from paddock.gateway.http.bodies import BodyRules
from paddock.gateway.http.body_budget import BodyBudget
from paddock.gateway.http.openapi import OpenAPI
from paddock.gateway.http.parse_turns import ParseTurns
from paddock.gateway.http.responses import on_http_exception, on_invalid_parameter, on_paddock_error
from paddock.gateway.ops.health import health_routes
from paddock.gateway.ops.live_view import live_routes
from paddock.gateway.ops.metrics import HTTPCounts, MetricsPage, metrics_routes
from paddock.gateway.ops.reference import reference_routes
from paddock.gateway.ops.reload import Reloader
from paddock.gateway.ops.telemetry import open_tracing
from paddock.gateway.ops.web_page import page_routes
from paddock.hosts import is_loopback


def create_app(settings: ServerSettings, fleet: Fleet, reloader: Reloader, gate: Gate, usage: UsageBook) -> FastAPI:
    tracing = open_tracing()
    audit = AuditLog(settings.audit_log) if settings.audit_log is not None else None

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await fleet.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        if audit is not None:
            await asyncio.to_thread(audit.close)

    app = FastAPI(
        title="Paddock", version=__version__, lifespan=lifespan, dependencies=[Depends(gate)], openapi_url=None
    )
    app.state.audit = audit
    bodies = BodyBudget(settings.body_budget)
    app.state.body_rules = BodyRules(settings.body_timeout, settings.body_rate, bodies, ParseTurns())
    app.state.max_text_chars = settings.max_text_chars
    app.add_exception_handler(PaddockError, on_paddock_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid_parameter)
    origins = Origins(settings.cors_origins)
    reloader.when_reloaded(lambda server: origins.replace(server.cors_origins))
    app.add_middleware(
        CrossOrigin,
        origins=origins,
        methods=["GET", "POST", "OPTIONS"],
        expose=["x-request-id", "x-job-id", "x-paddock-ignored-fields", *HEADERS],
    )
    app.add_middleware(Browsers, settings=settings, origins=origins, has_keys=lambda: gate.has_keys)
    counts = app.state.http_counts = HTTPCounts()
    counts.bodies = bodies
    app.add_middleware(counts.middleware)
    if tracing is not None:
        fleet.observe(tracing.ended)
        app.add_middleware(tracing.middleware)
    app.add_middleware(AccessLog, headers=_headers(settings), log_prompts=settings.log_prompts, audit=audit)
    for router in native_routes(fleet, settings):
        app.include_router(router)
    app.include_router(openai_routes(fleet, max_body=settings.max_body_bytes))
    app.include_router(response_routes(fleet, max_body=settings.max_body_bytes))
    app.include_router(anthropic_routes(fleet, max_body=settings.max_body_bytes))
    app.include_router(embedding_routes(fleet, max_body=settings.max_body_bytes))
    app.include_router(admin_routes(fleet, reloader, max_body=settings.max_body_bytes))
    app.include_router(model_routes(fleet, reloader))
    app.include_router(health_routes(fleet))
    page = app.state.metrics_page = MetricsPage(fleet, counts)
    app.include_router(metrics_routes(page, enabled=settings.metrics))
    app.include_router(usage_routes(usage))
    if settings.webui:
        app.include_router(page_routes())
        app.include_router(live_routes(fleet, gate))
    needs = needs_of_routes(settings)
    app.openapi = description = OpenAPI(app, needs)  # type: ignore[method-assign]
    app.include_router(reference_routes(description))
    gate.guard(needs_of_endpoints(app.routes, needs))
    return app


def _headers(settings: ServerSettings) -> dict[str, str]:
    """What every response says, unless it says otherwise itself."""
    headers = {
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    # Not of this machine's own name, by which other servers are reached without TLS.
    if settings.ssl_cert_file is not None and not is_loopback(settings.host):
        headers["Strict-Transport-Security"] = "max-age=31536000"
    return headers
