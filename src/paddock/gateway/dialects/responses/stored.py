"""Stored responses and conversations: how a request continues them, and the routes that show and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field, TypeAdapter, ValidationError

from paddock.conversations import Conversation, Conversations, Page, new_id
from paddock.conversations import Item as StoredItem
from paddock.errors import InvalidRequest, NotSupported
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.dialects.responses import schema
from paddock.gateway.dialects.responses.request import Item, MessageItem, ResponseRequest
from paddock.gateway.dialects.responses.turn import Turn
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields, Nothing
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.gateway.http.scope import BATCH_CALLER
from paddock.gateway.http.sizes import MOST_MESSAGES

_MOST_LISTED = 100
_ITEMS = TypeAdapter[list[Any]](list[Item])
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}
_Metadata = Annotated[dict[str, str], Field(max_length=16)]


# ── a request that continues something ───────────────────────────────────────────────────────────────────────────────


async def prepare(request: Request, body: ResponseRequest) -> ResponseRequest:
    """The body with the earlier turns that it names."""
    body.begin(await _turn(request, body))
    return body


async def _turn(request: Request, body: ResponseRequest) -> Turn:
    place: Conversations | None = request.app.state.conversations
    owner = caller_of(request).name
    conversation = body.conversation_id
    if body.previous_response_id is not None and conversation is not None:
        raise InvalidRequest("send previous_response_id or conversation, not both", param="conversation")
    continues = body.previous_response_id or conversation
    if continues and place is None:
        field = "conversation" if conversation else "previous_response_id"
        raise NotSupported(f"{field}: {_NOT_STORED}", param=field)
    if continues and body.receipt:
        raise InvalidRequest(
            "receipt: an answer that continues a stored one cannot be computed again from its request; send the whole "
            "conversation as input",
            param="receipt",
        )
    history: list[StoredItem] = []
    if place is not None and body.previous_response_id is not None:
        for stored in await place.chain(owner, body.previous_response_id):
            history += [*stored.input, *stored.output]
    elif place is not None and conversation is not None:
        history = await place.items(owner, conversation)
    # A batch would store thousands that nobody asked for.
    wants = body.store if body.store is not None else BATCH_CALLER not in request.scope or bool(conversation)
    return Turn(
        history=_readable(history),
        previous=body.previous_response_id,
        conversation=conversation,
        place=place if wants else None,
        owner=owner,
        input=as_stored(body.items),
        is_required=body.store is True or conversation is not None,
    )


def _readable(history: Sequence[StoredItem]) -> list[Any]:
    # The arguments of a call that was cut off are no JSON.
    complete = [item for item in history if (item.get("type"), item.get("status")) != ("function_call", "incomplete")]
    if len(complete) > MOST_MESSAGES:
        raise InvalidRequest(f"the conversation has {len(complete)} items; the limit is {MOST_MESSAGES}", param="input")
    try:
        return _ITEMS.validate_python(complete)
    except ValidationError as error:
        (first, *_) = error.errors()
        raise InvalidRequest(f"an item of the stored conversation cannot be read: {first['msg']}") from None


def as_stored(items: Sequence[Any]) -> list[StoredItem]:
    """Items of a request as they are stored and shown: each with an id, and its text as a list of parts."""
    stored: list[StoredItem] = []
    for item in items:
        shown = item.model_dump(by_alias=True, exclude_none=True)
        if isinstance(item, MessageItem) and isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            shown["content"] = [{"type": kind, "text": item.content}]
        stored.append({"id": new_id(_PREFIXES[item.type]), "status": "completed"} | shown)
    return stored


# ── routes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_NOT_STORED = "this server stores no responses (--no-store-responses, or a cluster without server.data_dir)"


class ItemList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ConversationObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class NewConversation(BodyFields):
    items: list[Item] | None = Field(None, max_length=MOST_MESSAGES)
    metadata: _Metadata | None = None


class NewItems(BodyFields):
    items: list[Item] = Field(min_length=1, max_length=MOST_MESSAGES)


class ConversationUpdate(BodyFields):
    metadata: _Metadata


_Limit = Annotated[int, Query(ge=1, le=_MOST_LISTED)]
_Order = Literal["asc", "desc"]

PERMISSIONS = [
    *("GET /v1/responses/{response_id}", "DELETE /v1/responses/{response_id}"),
    *("GET /v1/responses/{response_id}/input_items", "POST /v1/responses/{response_id}/cancel"),
    *("POST /v1/conversations", "GET /v1/conversations/{conversation_id}"),
    *("POST /v1/conversations/{conversation_id}", "DELETE /v1/conversations/{conversation_id}"),
    *("POST /v1/conversations/{conversation_id}/items", "GET /v1/conversations/{conversation_id}/items"),
    "GET /v1/conversations/{conversation_id}/items/{item_id}",
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
]


def stored_routes(services: Services) -> list[APIRouter]:
    return [_response_routes(services), _conversation_routes(services)]


def _place(services: Services) -> Conversations:
    if services.conversations is None:
        raise NotSupported(_NOT_STORED)
    return services.conversations


def _response_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.get("/v1/responses/{response_id}", **describe(schema.Response, prefix="Responses"))
    async def get_response(request: Request, response_id: str, stream: bool = False) -> Response:
        """A stored response, as it was sent."""
        if stream:
            raise InvalidRequest("stream: a stored response can only be read whole", param="stream")
        return JSON((await _place(services).response(caller_of(request).name, response_id)).response)

    @router.delete("/v1/responses/{response_id}", **describe(ResponseDeleted))
    async def delete_response(request: Request, response_id: str) -> Response:
        """Delete a stored response. What continues it cannot be continued any more."""
        await _place(services).delete_response(caller_of(request).name, response_id)
        return JSON(ResponseDeleted(id=response_id))

    @router.get("/v1/responses/{response_id}/input_items", **describe(ItemList))
    async def list_input_items(
        request: Request, response_id: str, after: str | None = None, limit: _Limit = 20, order: _Order = "desc"
    ) -> Response:
        """The items that the request of a stored response added, the newest first."""
        stored = await _place(services).response(caller_of(request).name, response_id)
        return JSON(_listed(stored.input, Page(after, limit, order == "asc")))

    @router.post(
        "/v1/responses/{response_id}/cancel",
        **describe(schema.Response, body=Nothing, optional=True, prefix="Responses"),
    )
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Refused: only responses in the background can be cancelled, and there are none. Close the connection."""
        await read_body(request, Nothing, limit=services.settings.max_body_bytes, optional=True)
        await _place(services).response(caller_of(request).name, response_id)
        raise InvalidRequest(f"{response_id} has ended: only responses with `background: true` can be cancelled")

    return router


def _conversation_routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["openai"])
    limit_bytes = services.settings.max_body_bytes

    @router.post("/v1/conversations", **describe(ConversationObject, body=NewConversation, optional=True))
    async def create_conversation(request: Request) -> Response:
        """Create a conversation, with its first items."""
        body = await read_body(request, NewConversation, limit=limit_bytes, optional=True)
        items = as_stored(body.items or [])
        return JSON(_shown(await _place(services).create(caller_of(request).name, items, body.metadata or {})))

    @router.get("/v1/conversations/{conversation_id}", **describe(ConversationObject))
    async def get_conversation(request: Request, conversation_id: str) -> Response:
        """One conversation, without its items."""
        return JSON(_shown(await _place(services).conversation(caller_of(request).name, conversation_id)))

    @router.post("/v1/conversations/{conversation_id}", **describe(ConversationObject, body=ConversationUpdate))
    async def update_conversation(request: Request, conversation_id: str) -> Response:
        """Replace the metadata of a conversation."""
        body = await read_body(request, ConversationUpdate, limit=limit_bytes)
        return JSON(_shown(await _place(services).update(caller_of(request).name, conversation_id, body.metadata)))

    @router.delete("/v1/conversations/{conversation_id}", **describe(ConversationDeleted))
    async def delete_conversation(request: Request, conversation_id: str) -> Response:
        """Delete a conversation and its items. Its responses are kept."""
        await _place(services).delete(caller_of(request).name, conversation_id)
        return JSON(ConversationDeleted(id=conversation_id))

    @router.post("/v1/conversations/{conversation_id}/items", **describe(ItemList, body=NewItems))
    async def create_items(request: Request, conversation_id: str) -> Response:
        """Add items to a conversation. Returns them with their ids."""
        body = await read_body(request, NewItems, limit=limit_bytes)
        items = as_stored(body.items)
        await _place(services).add_items(caller_of(request).name, conversation_id, items)
        return JSON(_listed(items, Page(None, len(items), ascending=True)))

    @router.get("/v1/conversations/{conversation_id}/items", **describe(ItemList))
    async def list_items(
        request: Request, conversation_id: str, after: str | None = None, limit: _Limit = 20, order: _Order = "desc"
    ) -> Response:
        """The items of a conversation, the newest first."""
        items = await _place(services).items(caller_of(request).name, conversation_id)
        return JSON(_listed(items, Page(after, limit, order == "asc")))

    @router.get("/v1/conversations/{conversation_id}/items/{item_id}", **describe(dict[str, Any]))
    async def get_item(request: Request, conversation_id: str, item_id: str) -> Response:
        """One item of a conversation."""
        return JSON(await _place(services).item(caller_of(request).name, conversation_id, item_id))

    @router.delete("/v1/conversations/{conversation_id}/items/{item_id}", **describe(ConversationObject))
    async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
        """Delete one item of a conversation."""
        place, owner = _place(services), caller_of(request).name
        await place.delete_item(owner, conversation_id, item_id)
        return JSON(_shown(await place.conversation(owner, conversation_id)))

    return router


def _shown(conversation: Conversation) -> ConversationObject:
    return ConversationObject(id=conversation.id, created_at=conversation.created_at, metadata=conversation.metadata)


def _listed(items: Sequence[StoredItem], page: Page) -> ItemList:
    shown, has_more = page.of(items)
    return ItemList(
        data=shown,
        first_id=shown[0]["id"] if shown else None,
        last_id=shown[-1]["id"] if shown else None,
        has_more=has_more,
    )
