"""The application, assembled from explicit parts; no globals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from paddock import __version__
from paddock.batches import Batches, Options, Quotas
from paddock.config import HostRules, ServerSettings, Settings
from paddock.conversations import Conversations, Limits
from paddock.errors import PaddockError, StartupError
from paddock.fleet import FileDigests, Fleet
from paddock.gateway.auth.audit import AuditLog
from paddock.gateway.auth.cross_origin import Origins, cross_origin
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.keys import read_keys
from paddock.gateway.auth.limits import HEADERS
from paddock.gateway.auth.origin_guard import OriginGuard
from paddock.gateway.auth.permissions import needs_of_endpoints, needs_of_routes
from paddock.gateway.auth.usage import UsageBook, usage_routes
from paddock.gateway.dialects import DIALECTS, declared_permissions
from paddock.gateway.dialects.dialect import Dialect, Services
from paddock.gateway.generation.defaults import check_defaults
from paddock.gateway.generation.media_sources import MediaSources
from paddock.gateway.generation.receipts import ReceiptDesk
from paddock.gateway.generation.stream_buffers import BufferLimits, StreamBuffers
from paddock.gateway.http.access_log import AccessLog
from paddock.gateway.http.bodies import BodyRules
from paddock.gateway.http.body_budget import BodyBudget
from paddock.gateway.http.openapi import build_openapi
from paddock.gateway.http.parse_turns import ParseTurns
from paddock.gateway.http.path_prefix import PathPrefix
from paddock.gateway.http.request_counts import HTTPCounts
from paddock.gateway.http.responses import ErrorFormats, on_http_exception, on_invalid_parameter, on_paddock_error
from paddock.gateway.ops.batch_lines import BatchEndpoint, BatchLines
from paddock.gateway.ops.downloads import Downloads
from paddock.gateway.ops.health import health_routes
from paddock.gateway.ops.live_view import live_routes
from paddock.gateway.ops.metrics.page import MetricsPage, metrics_routes
from paddock.gateway.ops.reload import Reloader
from paddock.gateway.ops.static_folder import static_routes
from paddock.gateway.ops.telemetry import open_tracing
from paddock.gateway.ops.web_page import page_routes, reference_routes, service_worker_routes
from paddock.mcp import ToolServers, resolve
from paddock.receipts import SigningKey
from paddock.storage import DataFolder, default_folder
from paddock.types.windows import Window


def create_app(
    configuration: Settings,
    fleet: Fleet,
    reread: Callable[[], Settings],
    *,
    gateways: int = 1,
    has_batches: bool = True,
    locks_data: bool = True,
    dialects: Sequence[Dialect] = DIALECTS,
) -> FastAPI:
    """The application of a gateway. A reload calls `reread` for the new settings. With several `gateways` each enforces
    its share of the limits of keys. Without `locks_data` it starts while another server has the data folder. Raises
    `StartupError`.
    """
    check_defaults(configuration.model_manager)
    settings = configuration.server
    usage = UsageBook()
    gate = Gate(read_keys(settings, gateways=gateways), usage)
    tools = ToolServers(resolve(settings.mcp_servers, os.environ))
    reloader = Reloader(fleet, gate, configuration, reread, tools)
    tracing = open_tracing()
    audit = AuditLog(settings.audit_log) if settings.audit_log is not None else None

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        desk: ReceiptDesk = app.state.receipts
        desk.prepare(fleet.catalogue)
        if batches is not None:
            await batches.resume()
        yield
        downloads.close()
        if conversations is not None:
            await conversations.close()
        if batches is not None:
            await batches.close()
        await streams.close()
        await sources.close()
        await tools.close()
        await fleet.close()
        for part in (tracing, audit):
            if part is not None:
                await asyncio.to_thread(part.close)

    app = FastAPI(
        title="Paddock", version=__version__, lifespan=lifespan, dependencies=[Depends(gate)], openapi_url=None
    )
    app.state.audit = audit
    app.state.reloader = reloader
    bodies = BodyBudget(settings.body_budget)
    app.state.body_rules = BodyRules(
        settings.body_timeout,
        settings.body_rate,
        bodies,
        ParseTurns(),
        settings.lenient,
        frozenset(name for each in dialects for endpoint in each.endpoints for name in endpoint.body.model_fields),
    )
    streams = app.state.stream_buffers = StreamBuffers(
        BufferLimits(settings.stream_buffers_per_key, settings.stream_buffer_bytes, settings.stream_buffer_seconds)
    )
    app.state.receipts = ReceiptDesk(
        FileDigests(), SigningKey.load(settings.receipt_key) if settings.receipt_key is not None else None
    )
    sources = app.state.media_sources = _media_sources(settings)
    app.state.api_prefix = settings.api_prefix
    app.state.max_text_chars = settings.max_text_chars
    app.add_exception_handler(PaddockError, on_paddock_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid_parameter)
    origins = Origins(settings)
    reloader.when_reloaded(origins.replace)
    app.add_middleware(
        cross_origin,
        origins=origins,
        expose=["x-request-id", "x-job-id", "x-paddock-ignored-fields", "x-paddock-normalized", *HEADERS],
    )
    app.add_middleware(OriginGuard, settings=settings, origins=origins, has_keys=lambda: gate.has_keys)
    counts = app.state.http_counts = HTTPCounts()
    counts.bodies = bodies
    counts.stream_buffers = streams
    counts.tools = tools
    if tracing is not None:
        fleet.observe(tracing.ended)
        app.add_middleware(tracing.middleware)
    formats = ErrorFormats({prefix: dialect.error_format for dialect in dialects for prefix in dialect.prefixes})
    app.state.error_formats = formats
    app.add_middleware(
        AccessLog,
        headers=_headers(settings),
        error_formats=formats,
        counts=counts,
        log_prompts=settings.log_prompts,
        on_end=audit.record_request if audit is not None else None,
    )
    if settings.api_prefix:
        app.add_middleware(PathPrefix, prefix=settings.api_prefix)
    data = DataFolder(settings.data_dir or default_folder())
    batches = app.state.batches = _batches(app, data, configuration, fleet, gate, dialects) if has_batches else None
    if batches is not None and locks_data and settings.data_dir is not None:
        batches.lock_now()
    conversations = app.state.conversations = _conversations(data, configuration) if has_batches else None
    downloads = Downloads(fleet, reloader)
    services = Services(fleet, reloader, settings, downloads, tools, batches, conversations)
    for dialect in dialects:
        for router in dialect.all_routers(services):
            app.include_router(router)
    app.include_router(health_routes(fleet))
    page = app.state.metrics_page = MetricsPage(fleet, counts, batches=batches)
    app.include_router(metrics_routes(page, enabled=settings.metrics))
    app.include_router(usage_routes(usage))
    if settings.webui:
        if settings.static_path is None:
            app.include_router(page_routes())
        app.include_router(live_routes(fleet, gate, batches))
    needs = needs_of_routes(settings, declared_permissions(dialects))
    app.openapi = partial(build_openapi, app, needs, settings.api_prefix)  # type: ignore[method-assign]
    app.include_router(reference_routes(app.openapi))
    folder = settings.static_path if settings.webui else None
    if folder is None or not (folder / "sw.js").exists():
        app.include_router(service_worker_routes())
    if folder is not None:
        app.include_router(static_routes(folder))
    gate.guard(needs_of_endpoints(app.routes, needs))
    return app


def _media_sources(settings: ServerSettings) -> MediaSources:
    folder = settings.media_path
    if folder is not None and not folder.is_dir():
        raise StartupError(f"the folder {folder} of server.media_path (--media-path) does not exist")
    return MediaSources(HostRules.parse(settings.media_url_hosts), folder, limit=settings.max_body_bytes)


def _conversations(data: DataFolder, configuration: Settings) -> Conversations | None:
    settings = configuration.responses
    if not settings.store:
        return None
    return Conversations(
        data, Limits(settings.max_bytes_per_key, configuration.server.max_body_bytes, settings.keep_days * 24 * 3600)
    )


def _batches(
    app: FastAPI,
    data: DataFolder,
    configuration: Settings,
    fleet: Fleet,
    gate: Gate,
    dialects: Sequence[Dialect],
) -> Batches:
    settings, rules = configuration.batches, configuration.server
    endpoints = {
        path: BatchEndpoint(declared, dialect.field_names)
        for dialect in dialects
        for declared in dialect.declared
        for path in declared.paths
    }
    lines = BatchLines(
        app,
        fleet,
        gate,
        app.state.body_rules,
        endpoints,
        idle_seconds=settings.idle_seconds,
        prefix=rules.api_prefix,
    )
    return Batches(
        data,
        lines,
        Options(
            may_load=settings.may_load,
            windows=tuple(map(Window.parse, settings.windows)),
            in_flight=settings.in_flight,
            attempts=settings.attempts,
            allow_change=settings.allow_model_change,
            longest_body=rules.max_body_bytes,
            most_waiting=settings.max_waiting_per_key,
        ),
        Quotas(settings.max_files_per_key, settings.max_bytes_per_key, settings.max_file_bytes),
        app.state.receipts.key,
    )


def _headers(settings: ServerSettings) -> dict[str, str]:
    """The default headers of every response."""
    headers = {
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    # Not for loopback names: other servers on them have no TLS.
    if settings.ssl_cert_file is not None and not settings.is_local:
        headers["Strict-Transport-Security"] = "max-age=31536000"
    return headers
