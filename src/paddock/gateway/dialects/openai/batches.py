"""`/v1/batches`: requests from a file, run when the server has time."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field, StringConstraints

from paddock.batches import Batch, NewBatch, Page
from paddock.errors import InvalidRequest, NotFound
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.openai.files import batches_of
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields, Fields, Nothing
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""What the lines of a batch can request."""
_UNITS: Final = {"m": 60, "h": 3600, "d": 24 * 3600}
_LONGEST_WINDOW: Final = 30 * 24 * 3600
_MOST_METADATA = 16


class ExpiresAfter(Fields):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2592000)


class BatchRequest(BodyFields):
    input_file_id: str
    endpoint: str
    completion_window: str
    """OpenAI knows `24h` only. Here any number of minutes, hours or days up to 30 days: `90m`, `8h`, `7d`."""
    metadata: (
        dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]] | None
    ) = None
    output_expires_after: ExpiresAfter | None = None
    deterministic: bool | None = None
    """Paddock's own: every line is deterministic unless it says otherwise. A deterministic line without a seed gets its
    seed from its `custom_id`.
    """
    receipt: bool | None = None
    """Paddock's own: false leaves out the receipts of deterministic lines that do not ask for one."""
    allow_model_change: bool | None = None
    """Paddock's own: go on if the file of the model changes."""


class BatchError(msgspec.Struct, omit_defaults=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchFailure(msgspec.Struct):
    custom_id: str
    status: int | None
    """Of the response; null: there was none."""
    code: str
    message: str


class RequestCounts(msgspec.Struct):
    total: int
    completed: int
    failed: int


class CachedDetails(msgspec.Struct):
    cached_tokens: int


class ReasoningDetails(msgspec.Struct):
    reasoning_tokens: int


class BatchUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class BatchObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    deterministic: bool
    """Paddock's own, as in the request."""
    last_receipt: str | None
    """Paddock's own: the hash of the last receipt in the output file, for `paddock verify --last`."""
    first_failures: list[BatchFailure]
    """Paddock's own: the first lines that failed, at most five, also while the batch runs."""
    waiting_for: str | None
    """Paddock's own: why no line is running now, if the server knows a reason."""


class BatchList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["batches"])

    def shown(batch: Batch) -> BatchObject:
        return _shown(batch, batches_of(services).waiting_for(batch.id))

    @router.post("/v1/batches", **describe(BatchObject, body=BatchRequest))
    async def create_batch(request: Request) -> Response:
        """Run the requests of an uploaded file. The file is validated first: `errors` has every mistake."""
        body = await read_body(request, BatchRequest, limit=services.settings.max_body_bytes, exact=True)
        batches, owner = batches_of(services), caller_of(request).name
        if body.endpoint not in ENDPOINTS:
            raise InvalidRequest(
                f"endpoint: {body.endpoint[:80]!r} is not supported in batches; it must be one of "
                f"{', '.join(ENDPOINTS)}",
                param="endpoint",
            )
        if body.metadata is not None and len(body.metadata) > _MOST_METADATA:
            raise InvalidRequest(
                f"metadata has {len(body.metadata)} entries; the limit is {_MOST_METADATA}", param="metadata"
            )
        if body.receipt and not body.deterministic:
            raise InvalidRequest(
                "receipt: only a deterministic answer can have one; send `deterministic: true`", param="receipt"
            )
        seconds = _window_seconds(body.completion_window)
        try:
            file = await batches.file(owner, body.input_file_id)
        except NotFound as error:
            raise NotFound(error.message, param="input_file_id") from None
        if file.purpose != "batch":
            raise InvalidRequest(f"{file.id} was not uploaded for a batch", param="input_file_id")
        new = NewBatch(
            dialect="openai",
            endpoint=body.endpoint,
            input_file=file.id,
            window=body.completion_window,
            seconds=seconds,
            metadata=body.metadata or {},
            deterministic=bool(body.deterministic),
            receipts=body.receipt is not False,
            allow_change=bool(body.allow_model_change),
            keep_results=body.output_expires_after.seconds if body.output_expires_after is not None else None,
        )
        return JSON(shown(await batches.create(owner, new)))

    @router.get("/v1/batches", **describe(BatchList))
    async def list_batches(
        request: Request, after: str | None = None, limit: int = Query(20, ge=1, le=100)
    ) -> Response:
        """The batches of the caller's key, the newest first."""
        found, has_more = await batches_of(services).batches(caller_of(request).name, "openai", Page(after, limit))
        return JSON(
            BatchList(
                data=[shown(batch) for batch in found],
                first_id=found[0].id if found else None,
                last_id=found[-1].id if found else None,
                has_more=has_more,
            )
        )

    @router.get("/v1/batches/{batch_id}", **describe(BatchObject))
    async def get_batch(request: Request, batch_id: str) -> Response:
        """The state of one batch: its progress, its mistakes, its result files."""
        return JSON(shown(await batches_of(services).batch(caller_of(request).name, batch_id, "openai")))

    @router.post("/v1/batches/{batch_id}/cancel", **describe(BatchObject, body=Nothing, optional=True))
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """Stop the running lines and run no others. The results so far are kept."""
        await read_body(request, Nothing, limit=services.settings.max_body_bytes, optional=True)
        return JSON(shown(await batches_of(services).cancel(caller_of(request).name, batch_id, "openai")))

    return router


def _window_seconds(window: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", window)
    seconds = int(match[1]) * _UNITS[match[2]] if match is not None else 0
    if not 0 < seconds <= _LONGEST_WINDOW:
        raise InvalidRequest(
            "completion_window must be a number of minutes, hours or days, such as 24h, and at most 30d",
            param="completion_window",
        )
    return seconds


def _shown(batch: Batch, waiting_for: str | None) -> BatchObject:
    has_files = batch.has_ended
    usage = batch.usage
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=BatchErrors(data=[BatchError(one.code, one.message, one.param, one.line) for one in batch.mistakes])
        if batch.mistakes
        else None,
        input_file_id=batch.input_file,
        completion_window=batch.window,
        status=batch.status,
        output_file_id=batch.output_file if has_files and batch.output.lines else None,
        error_file_id=batch.error_file if has_files and batch.errors.lines else None,
        created_at=batch.created_at,
        in_progress_at=batch.in_progress_at,
        expires_at=batch.expires_at,
        finalizing_at=batch.finalizing_at,
        completed_at=batch.completed_at,
        failed_at=batch.failed_at,
        expired_at=batch.expired_at,
        cancelling_at=batch.cancelling_at,
        cancelled_at=batch.cancelled_at,
        request_counts=RequestCounts(batch.total, batch.output.lines, batch.errors.lines),
        usage=BatchUsage(
            usage.input,
            CachedDetails(usage.cached),
            usage.output,
            ReasoningDetails(usage.reasoning),
            usage.input + usage.output,
        ),
        metadata=batch.metadata or None,
        deterministic=batch.deterministic,
        last_receipt=batch.output.receipt or None,
        first_failures=[
            BatchFailure(one.custom_id, one.status or None, one.code, one.message) for one in batch.first_failures
        ],
        waiting_for=waiting_for,
    )
