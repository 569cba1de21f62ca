"""`/v1/files`: the inputs and the results of batches. An upload goes to the disk as it arrives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response

from paddock.batches import Batches, Page, StoredFile, Upload
from paddock.errors import InvalidRequest, NotSupported
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_stream
from paddock.gateway.http.multipart import MultipartParser, PartBegin, PartData, boundary_of
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON

_BYTES = "application/octet-stream"
_MOST_FIELDS = 16
_LONGEST_FIELD = 1024
_LONGEST_NAME = 255
_MOST_FILES = 10_000
"""Of one page."""
_LEAST_AGE, _LONGEST_AGE = 3600, 30 * 24 * 3600


class FileObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str
    object: Literal["file"] = msgspec.field(default_factory=lambda: "file")
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = msgspec.field(default_factory=lambda: "processed")
    expires_at: int | None = None


class FileList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def batches_of(services: Services) -> Batches:
    if services.batches is None:
        raise NotSupported(
            "this server has no files and batches: a cluster needs one gateway (cluster.gateways) and server.data_dir"
        )
    return services.batches


def file_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["batches"])

    @router.post("/v1/files", **_described(describe(FileObject)))
    async def create_file(request: Request) -> Response:
        """Upload a file of requests for a batch, as `multipart/form-data` with `purpose=batch` and `file`."""
        upload = await batches_of(services).upload(caller_of(request).name)
        try:
            name, fields = await _receive(request, upload)
            _check_purpose(fields)
            file = await upload.finish(name, keep=_seconds_to_keep(fields))
        except BaseException:
            await upload.abort()
            raise
        return JSON(shown_file(file))

    @router.get("/v1/files", **describe(FileList))
    async def list_files(
        request: Request,
        after: str | None = None,
        limit: int = Query(_MOST_FILES, ge=1, le=_MOST_FILES),
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Response:
        """The files of the caller's key, the newest first."""
        page = Page(after, limit, ascending=order == "asc")
        files, has_more = await batches_of(services).files(caller_of(request).name, page, purpose)
        return JSON(
            FileList(
                data=[shown_file(file) for file in files],
                first_id=files[0].id if files else None,
                last_id=files[-1].id if files else None,
                has_more=has_more,
            )
        )

    @router.get("/v1/files/{file_id}", **describe(FileObject))
    async def get_file(request: Request, file_id: str) -> Response:
        """The size and the name of one file."""
        return JSON(shown_file(await batches_of(services).file(caller_of(request).name, file_id)))

    @router.get("/v1/files/{file_id}/content", **describe(text=_BYTES))
    async def get_file_content(request: Request, file_id: str) -> Response:
        """The content of one file, as it was uploaded or written."""
        path = await batches_of(services).content(caller_of(request).name, file_id)
        return FileResponse(path, media_type=_BYTES)

    @router.delete("/v1/files/{file_id}", **describe(FileDeleted))
    async def delete_file(request: Request, file_id: str) -> Response:
        """Delete a file. The input of a batch that has not ended cannot be deleted."""
        await batches_of(services).delete_file(caller_of(request).name, file_id)
        return JSON(FileDeleted(id=file_id))

    return router


def shown_file(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=file.created_at,
        filename=file.name,
        purpose=file.purpose,
        expires_at=file.expires_at,
    )


def _described(route: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "purpose": {"const": "batch"},
            "file": {"type": "string", "format": "binary"},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {"type": "integer", "minimum": _LEAST_AGE, "maximum": _LONGEST_AGE},
        },
        "required": ["purpose", "file"],
    }
    content = {"multipart/form-data": {"schema": schema}}
    return {**route, "openapi_extra": {"requestBody": {"required": True, "content": content}}}


async def _receive(request: Request, upload: Upload) -> tuple[str, dict[str, str]]:
    """Write the file of the form to the upload. Returns its name and the other fields."""
    parser = MultipartParser(boundary_of(request.headers.get("content-type", "")))
    fields: dict[str, bytes] = {}
    name: str | None = None
    current = ""
    async for piece in read_stream(request):
        for event in parser.feed(piece):
            if isinstance(event, PartBegin):
                current = event.name
                if current in fields or (current == "file" and name is not None):
                    raise InvalidRequest(f"the form has the field {current[:80]!r} twice", param=current[:80])
                if current == "file":
                    name = (event.filename or "upload.jsonl")[-_LONGEST_NAME:]
                elif len(fields) >= _MOST_FIELDS:
                    raise InvalidRequest(f"the form has more than {_MOST_FIELDS} fields")
                else:
                    fields[current] = b""
            elif isinstance(event, PartData):
                if current == "file":
                    await upload.write(event.data)
                elif len(fields[current]) + len(event.data) > _LONGEST_FIELD:
                    raise InvalidRequest(f"{current}: the value has more than {_LONGEST_FIELD} bytes", param=current)
                else:
                    fields[current] += event.data
    if not parser.is_complete:
        raise InvalidRequest("the form is not complete: its last boundary is missing", param="file")
    if name is None:
        raise InvalidRequest("the form has no field 'file'", param="file")
    return name, {field: value.decode("utf-8", "replace") for field, value in fields.items()}


def _check_purpose(fields: Mapping[str, str]) -> None:
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("the form has no field 'purpose': it must be 'batch'", param="purpose")
    if purpose != "batch":
        raise InvalidRequest(f"purpose: {purpose!r} is not supported; it must be 'batch'", param="purpose")


def _seconds_to_keep(fields: Mapping[str, str]) -> int | None:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("expires_after.anchor must be 'created_at'", param="expires_after.anchor")
    if seconds is None or not re.fullmatch(r"\d{1,9}", seconds) or not _LEAST_AGE <= int(seconds) <= _LONGEST_AGE:
        raise InvalidRequest(
            f"expires_after.seconds must be a number from {_LEAST_AGE} to {_LONGEST_AGE}", param="expires_after.seconds"
        )
    return int(seconds)
