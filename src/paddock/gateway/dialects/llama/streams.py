"""`/v1/stream`: continue to read a stream after its connection was lost."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from paddock.errors import InvalidRequest, NotFound
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.generation.stream_buffers import StreamBuffer, StreamBuffers
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.event_stream import EventStream
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.openapi import TEXT, describe
from paddock.gateway.http.responses import JSON

_MOST_CONVERSATIONS = 1024
_MOST_DIGITS = 19
"""Of an offset. Python refuses to convert thousands of digits."""
_Conversation = Annotated[str, Query(alias="conv_id")]


class LookupRequest(BodyFields):
    conversation_ids: list[str] = Field([], max_length=_MOST_CONVERSATIONS)


class StreamState(msgspec.Struct, kw_only=True):
    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    """Unix time."""
    completed_at: int
    """Unix time; 0 while it runs."""


def stream_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.get("/v1/stream", **describe(text=TEXT))
    async def resume_stream(
        request: Request, conversation: _Conversation = "", offset: Annotated[str, Query(alias="from")] = "0"
    ) -> Response:
        """The bytes of a stream from the offset `from`, then those that still come. `conv_id` is the value of the
        header X-Conversation-Id of the request that began the stream.
        """
        buffers = _buffers(request)
        buffer = buffers.find(caller_of(request).name, _named(conversation))
        if buffer is None:
            raise NotFound("Stream not found or expired", param="conv_id")
        if not offset.isascii() or not offset.isdecimal() or len(offset) > _MOST_DIGITS:
            raise InvalidRequest(f"Invalid 'from' offset: {offset[:40]!r} is not a number of bytes", param="from")
        buffer.check(int(offset))
        buffers.resumed += 1
        return EventStream(buffer.read_from(int(offset)), buffer.framing, keep_alive_seconds=-1)

    @router.delete("/v1/stream", status_code=204, **_no_content(describe()))
    async def stop_stream(request: Request, conversation: _Conversation = "") -> Response:
        """Stop the generation of a stream, and forget its bytes. Answers 204, also if there is no such stream."""
        _buffers(request).remove(caller_of(request).name, _named(conversation))
        return Response(status_code=204)

    @router.post("/v1/streams/lookup", **describe(list[StreamState], body=LookupRequest))
    async def look_up_streams(request: Request) -> Response:
        """The streams of these conversations that can be resumed."""
        body = await read_body(request, LookupRequest, limit=services.settings.max_body_bytes)
        found = _buffers(request).matching(caller_of(request).name, body.conversation_ids)
        return JSON([_state(buffer) for buffer in found])

    return router


def _no_content(described: dict[str, Any]) -> dict[str, Any]:
    """The description of a route whose answer has no body."""
    responses = {status: one for status, one in described["responses"].items() if status != 200}
    return described | {"responses": {204: {"description": "Done"}} | responses}


def _buffers(request: Request) -> StreamBuffers:
    buffers: StreamBuffers = request.app.state.stream_buffers
    return buffers


def _named(conversation: str) -> str:
    if not conversation:
        raise InvalidRequest("Missing conversation id: send it as ?conv_id=ID", param="conv_id")
    return conversation


def _state(buffer: StreamBuffer) -> StreamState:
    return StreamState(
        conversation_id=buffer.conversation,
        is_done=buffer.is_done,
        total_bytes=buffer.total,
        started_at=int(buffer.started),
        completed_at=int(buffer.completed or 0),
    )
