"""`/v1/messages/batches`: many messages in one request, run when the server has time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field, StringConstraints

from paddock.batches import Batch, Batches, NewBatch, Page, message_line
from paddock.errors import InvalidRequest, NotFound, NotSupported
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.anthropic.schema import Failure
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields, Fields, Nothing
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_ENDPOINT: Final = "/v1/messages"
_WINDOW: Final = 24 * 3600
_MOST_REQUESTS: Final = 100_000
_JSONL: Final = "application/x-jsonl"
_TOGETHER = 64
_encode = msgspec.json.encode


class MessageBatchItem(Fields):
    custom_id: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]
    """The body of a message."""


class MessageBatchRequest(BodyFields):
    token_lists = frozenset({"requests"})

    requests: list[MessageBatchItem] = Field(min_length=1, max_length=_MOST_REQUESTS)


class MessageBatchCounts(msgspec.Struct):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None
    last_receipt: str | None
    """Paddock's own: the hash of the last receipt in the results, for `paddock verify --last`."""


class MessageBatchList(msgspec.Struct, kw_only=True):
    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


def message_batch_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["batches"])
    described: dict[str, Any] = {"error": Failure, "prefix": "Messages"}

    def batches() -> Batches:
        if services.batches is None:
            raise NotSupported(
                "this server has no batches: a cluster needs one gateway (cluster.gateways) and server.data_dir"
            )
        return services.batches

    def shown(request: Request, batch: Batch) -> MessageBatch:
        root = f"{str(request.base_url).rstrip('/')}{services.settings.api_prefix}"
        return _shown(batch, f"{root}{_ENDPOINT}/batches/{batch.id}/results")

    @router.post("/v1/messages/batches", **describe(MessageBatch, body=MessageBatchRequest, **described))
    async def create_message_batch(request: Request) -> Response:
        """Run many messages. All are validated first; the first mistake is a 400 that names the request."""
        body = await read_body(request, MessageBatchRequest, limit=services.settings.max_body_bytes)
        owner = caller_of(request).name
        upload = await batches().upload(owner)
        try:
            for some in _chunks(iter(body.requests), _TOGETHER):
                await upload.write(b"".join(map(_line, some)))
            file = await upload.finish("requests.jsonl", hidden=True)
        except BaseException:
            await upload.abort()
            raise
        new = NewBatch(dialect="anthropic", endpoint=_ENDPOINT, input_file=file.id, window="24h", seconds=_WINDOW)
        batch, mistakes = await batches().create_valid(owner, new)
        if mistakes:
            first = mistakes[0]
            param = f"requests[{(first.line or 1) - 1}].{(first.param or '').replace('body', 'params', 1)}".rstrip(".")
            raise InvalidRequest(f"{param}: {first.message}", param=param)
        return JSON(shown(request, batch))

    @router.get("/v1/messages/batches", **describe(MessageBatchList, **described))
    async def list_message_batches(
        request: Request,
        before_id: str | None = None,
        after_id: str | None = None,
        limit: int = Query(20, ge=1, le=1000),
    ) -> Response:
        """The batches of the caller's key, the newest first."""
        if before_id is not None and after_id is not None:
            raise InvalidRequest("before_id and after_id are mutually exclusive", param="before_id")
        page = Page(before_id or after_id, limit, ascending=before_id is not None)
        found, has_more = await batches().batches(caller_of(request).name, "anthropic", page)
        found = found[::-1] if before_id is not None else found
        return JSON(
            MessageBatchList(
                data=[shown(request, batch) for batch in found],
                has_more=has_more,
                first_id=found[0].id if found else None,
                last_id=found[-1].id if found else None,
            )
        )

    @router.get("/v1/messages/batches/{message_batch_id}", **describe(MessageBatch, **described))
    async def get_message_batch(request: Request, message_batch_id: str) -> Response:
        """The state of one batch."""
        batch = await batches().batch(caller_of(request).name, message_batch_id, "anthropic")
        return JSON(shown(request, batch))

    @router.post(
        "/v1/messages/batches/{message_batch_id}/cancel",
        **describe(MessageBatch, body=Nothing, optional=True, **described),
    )
    async def cancel_message_batch(request: Request, message_batch_id: str) -> Response:
        """Stop the running messages and run no others. The results so far are kept."""
        await read_body(request, Nothing, limit=services.settings.max_body_bytes, optional=True)
        batch = await batches().cancel(caller_of(request).name, message_batch_id, "anthropic")
        return JSON(shown(request, batch))

    @router.delete("/v1/messages/batches/{message_batch_id}", **describe(DeletedMessageBatch, **described))
    async def delete_message_batch(request: Request, message_batch_id: str) -> Response:
        """Delete a batch that has ended, with its results."""
        await batches().delete(caller_of(request).name, message_batch_id, "anthropic")
        return JSON(DeletedMessageBatch(id=message_batch_id))

    @router.get("/v1/messages/batches/{message_batch_id}/results", **describe(text=_JSONL, **described))
    async def get_message_batch_results(request: Request, message_batch_id: str) -> Response:
        """A line of JSON for each request, in any order, when the batch has ended."""
        batch = await batches().batch(caller_of(request).name, message_batch_id, "anthropic")
        if not batch.has_ended:
            raise NotFound(f"the batch {batch.id} has no results yet: it is {batch.status}", param="message_batch_id")
        # Errors first: they have no receipts, and the first receipt shows that they never had one.
        paths = batches().result_paths(batch)[::-1]
        return StreamingResponse(_results(paths), media_type=_JSONL)

    return router


def _line(item: MessageBatchItem) -> bytes:
    line = {"custom_id": item.custom_id, "method": "POST", "url": _ENDPOINT, "body": item.params}
    return _encode(line) + b"\n"


def _chunks(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(islice(items, size)):
        yield chunk


async def _results(paths: Sequence[Path]) -> AsyncIterator[bytes]:
    lines = _result_lines(paths)
    while some := await asyncio.to_thread(lambda: b"".join(islice(lines, _TOGETHER))):
        yield some


def _result_lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    yield _encode(_result(msgspec.json.decode(line, type=_Written))) + b"\n"


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Written(msgspec.Struct):
    """A line of a result file."""

    custom_id: str
    response: _Response | None
    error: _Error | None


_ENDINGS: Final = {"batch_cancelled": "canceled", "batch_expired": "expired"}


def _result(line: _Written) -> dict[str, Any]:
    if line.response is not None and line.response.status_code < 300:
        return message_line(line.custom_id, line.response.body)
    if line.response is not None:
        return {"custom_id": line.custom_id, "result": {"type": "errored", "error": line.response.body}}
    assert line.error is not None, "a line has one of them"
    if (ending := _ENDINGS.get(line.error.code)) is not None:
        return {"custom_id": line.custom_id, "result": {"type": ending}}
    error = {"type": "error", "error": {"type": "api_error", "message": line.error.message}, "request_id": None}
    return {"custom_id": line.custom_id, "result": {"type": "errored", "error": error}}


def _shown(batch: Batch, results_url: str) -> MessageBatch:
    ended, not_run = batch.has_ended, batch.not_run
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    return MessageBatch(
        id=batch.id,
        processing_status="ended" if ended else "canceling" if batch.status == "cancelling" else "in_progress",
        request_counts=MessageBatchCounts(
            processing=0 if ended else batch.total,
            succeeded=batch.output.lines if ended else 0,
            errored=batch.errors.lines - not_run if ended else 0,
            canceled=not_run if ended and batch.ending == "cancelled" else 0,
            expired=not_run if ended and batch.ending == "expired" else 0,
        ),
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=None if ended_at is None else _time(ended_at),
        cancel_initiated_at=None if batch.cancelling_at is None else _time(batch.cancelling_at),
        results_url=results_url if ended else None,
        last_receipt=batch.output.receipt or None,
    )


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
