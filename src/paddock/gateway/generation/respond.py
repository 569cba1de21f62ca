"""From a body to the response: a whole answer, or a stream that may begin before the model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from paddock.errors import PaddockError, UnsupportedParameter
from paddock.fleet import Fleet, Generation, Model
from paddock.gateway.auth.caller import caller_of, model_to_run
from paddock.gateway.auth.metering import answers_of, meter_of, tokens_of
from paddock.gateway.generation.cache_log import log_reports, with_reports
from paddock.gateway.generation.conversation import renamed_params
from paddock.gateway.generation.defaults import with_defaults
from paddock.gateway.generation.endpoint import Answer, Body, Endpoint
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import start_all
from paddock.gateway.generation.media_sources import MediaSources
from paddock.gateway.generation.normalizing import names_for, normalized_requests
from paddock.gateway.generation.receipts import OpenReceipt, ReceiptDesk, check_receipt, no_receipt, with_date
from paddock.gateway.generation.stream_buffers import CONVERSATION_HEADER, StreamBuffers
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.event_stream import EventStream
from paddock.gateway.http.framing import Framing
from paddock.gateway.http.request_context import REQUEST_ID
from paddock.gateway.http.responses import JSON, error_event
from paddock.gateway.http.scope import BATCH_DATE, BODY, GIVEN, HELD, NORMALIZED, TRACE_KIND

_HOLD_SECONDS = 2.0
"""A stream is held back for so long, so that an early refusal has a status of its own."""
_PROGRESS_SECONDS = 2.0
_USUAL_CONTEXT = 16384
"""Assumed for a model that is not loaded and whose context size is the trained one."""


async def respond(
    request: Request,
    fleet: Fleet,
    endpoint: Endpoint[Body],
    body: Body,
    *,
    framing: Framing,
    field_names: Mapping[str, str],
    keep_alive: bytes | None = None,
) -> Response:
    """Generate what the body requests, and answer as the endpoint does.

    A stream whose model is still loading begins with comments that show the progress. An error after that is an event.
    `field_names` maps the fields that errors name to the dialect's own names.
    """
    request.scope[TRACE_KIND] = endpoint.trace_kind
    model = model_to_run(request, fleet, body.model)
    sent, body = body, await with_defaults(body, model, is_loaded=fleet.info(model) is not None)
    body = with_date(body, request.scope.get(BATCH_DATE, ""))
    meter = meter_of(request)
    with renamed_params(field_names):
        listed = [(item.id, item.scale) for item in body.lora] if body.lora else None
        context = RequestContext(REQUEST_ID.get(), caller_of(request).origin, fleet.adapters_for(model, listed))
        normalizers = names_for(body, model)
        requests, acted = normalized_requests(endpoint.parse(body, context), normalizers)
        requests = with_reports(requests)
        if model.options.context_shift and requests[0].deterministic:
            message = "this model shifts its context (context_shift), so its answers cannot be deterministic"
            raise UnsupportedParameter(message, param="deterministic")
        check_receipt(requests, model)
        answers = answers_of(requests[0], len(requests))
        meter.reserve(answers, tokens_of(requests, _n_ctx(fleet, model)) if meter.counts_tokens else 0)

    if acted:
        request.scope[NORMALIZED] = ", ".join(acted)
    shown_model = fleet.catalogue.shown_name(model, body.model)
    receipt: OpenReceipt | None = None
    if requests[0].receipt:
        desk: ReceiptDesk = request.app.state.receipts
        receipt = desk.open(
            request.scope[GIVEN],
            sent,
            body,
            endpoint=endpoint.paths[0],
            model=model,
            shown_model=shown_model,
            requests=requests,
            normalizers=normalizers,
        )

    def answer(generations: Sequence[Generation]) -> Answer:
        of_stream = no_receipt if receipt is None else receipt.of_stream(generations)
        return endpoint.answer(body, shown_model, generations, of_stream)

    async def start() -> Sequence[Generation]:
        try:
            with renamed_params(field_names):
                sources: MediaSources = request.app.state.media_sources
                complete = await sources.fetch_all(requests, request.scope.get(HELD))
                generations = await start_all(fleet, model, complete)
        except PaddockError:
            meter.failed()
            raise
        meter.generating(generations)
        log_reports(generations, requests, model, words=BODY in request.scope)
        return generations

    if not body.stream:

        async def whole() -> Any:
            generations = await start()
            reply = await answer(generations).whole()
            return reply if receipt is None else await receipt.add_to(reply, generations)

        reply = await until_disconnect(request, whole())
        return reply if isinstance(reply, Response) else JSON(reply)
    started = asyncio.ensure_future(start())
    try:
        await asyncio.wait({started}, timeout=_HOLD_SECONDS)
    except asyncio.CancelledError:
        _abandon(started)
        raise
    if started.done():
        events = answer(started.result()).events()
    else:
        events = _after_loading(started, answer, lambda: framing.comment(fleet.progress(model)))
    stream = EventStream(events, framing, keep_alive=keep_alive, keep_alive_seconds=body.sse_ping_interval)
    return _resumable(request, stream, framing, lambda: _abandon(started)) or stream


def _resumable(
    request: Request, stream: EventStream, framing: Framing, close: Callable[[], None]
) -> EventStream | None:
    """The same stream by way of a buffer, if the request names its conversation and there is a free buffer. `close`
    frees what the stream uses.
    """
    conversation = request.headers.get(CONVERSATION_HEADER)
    if not conversation:
        return None
    buffers: StreamBuffers = request.app.state.stream_buffers
    buffer = buffers.open(caller_of(request).name, conversation, framing)
    if buffer is None:
        return None
    meter = meter_of(request)
    meter.hold()

    def ended() -> None:
        close()
        meter.close()

    buffers.fill(
        buffer,
        stream.events,
        keep_alive=stream.keep_alive,
        silence=stream.silence,
        error_event=lambda error: error_event(error, request.scope),
        on_end=ended,
    )
    return EventStream(buffer.read_from(0), framing, keep_alive_seconds=-1)


def _n_ctx(fleet: Fleet, model: Model) -> int:
    info = fleet.info(model)
    return info.n_ctx if info is not None else model.options.n_ctx or _USUAL_CONTEXT


async def _after_loading(
    started: asyncio.Future[Sequence[Generation]],
    answer: Callable[[Sequence[Generation]], Answer],
    progress: Callable[[], bytes],
) -> AsyncGenerator[bytes]:
    try:
        while not started.done():
            if comment := progress():
                yield comment
            await asyncio.wait({started}, timeout=_PROGRESS_SECONDS)
        generations = started.result()
    except PaddockError:
        raise
    except BaseException:
        _abandon(started)
        raise
    async with aclosing(answer(generations).events()) as events:
        async for event in events:
            yield event


def _abandon(started: asyncio.Future[Sequence[Generation]]) -> None:
    """The client has disconnected: close the generations as soon as they are known."""

    def close(done: asyncio.Future[Sequence[Generation]]) -> None:
        if not done.cancelled() and done.exception() is None:
            for generation in done.result():
                generation.close()

    started.cancel()
    started.add_done_callback(close)
