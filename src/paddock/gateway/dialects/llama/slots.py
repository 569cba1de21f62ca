"""`/slots`: the slots of a model, and saving, restoring or erasing the tokens of one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import AfterValidator

from paddock.errors import InvalidRequest, NotSupported, Unavailable
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.generation.settings import generation_settings
from paddock.gateway.generation.timings import NativeTimings, native_timings
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import Fields
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON, struct_from
from paddock.types import ModelKind, SlotAction, SlotState
from paddock.wire.messages import SlotDone

# Leaves room for the suffix of the temporary file.
_LONGEST_NAME = 200

Action = Literal["save", "restore", "erase"]


def _plain_name(name: str) -> str:
    """A file name without a path."""
    if not name or name.startswith(".") or any(letter in "/\\" or not letter.isprintable() for letter in name):
        raise ValueError("it must be a file name without a path, control characters or a leading dot")
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError(f"the file name has {len(name.encode())} bytes; the limit is {_LONGEST_NAME}")
    return name


class SlotActionBody(Fields):
    filename: Annotated[str, AfterValidator(_plain_name)] | None = None
    """In the folder of `--slot-save-path`; needed to save and to restore."""
    model: str | None = None


class SlotTimings(msgspec.Struct, kw_only=True, omit_defaults=True):
    save_ms: float | msgspec.UnsetType = msgspec.UNSET
    restore_ms: float | msgspec.UnsetType = msgspec.UNSET


class SlotAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The number of tokens and, for a file, its bytes and the time."""

    id_slot: int
    filename: str | msgspec.UnsetType = msgspec.UNSET
    n_erased: int | msgspec.UnsetType = msgspec.UNSET
    n_saved: int | msgspec.UnsetType = msgspec.UNSET
    n_written: int | msgspec.UnsetType = msgspec.UNSET
    n_restored: int | msgspec.UnsetType = msgspec.UNSET
    n_read: int | msgspec.UnsetType = msgspec.UNSET
    timings: SlotTimings | msgspec.UnsetType = msgspec.UNSET


class NextToken(msgspec.Struct, kw_only=True):
    has_next_token: bool
    n_remain: int
    n_decoded: int


class ShownSlot(msgspec.Struct, kw_only=True):
    """llama-server's fields, and Paddock's own: `n_past`, `n_cached_tokens` and the timings.

    The last three are absent until the first request of a slot.
    """

    id: int
    id_task: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    n_past: int
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    n_cached_tokens: int
    n_decoded: int
    kind: ModelKind | None
    params: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    next_token: list[NextToken] | msgspec.UnsetType = msgspec.UNSET
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET


def slot_routes(services: Services) -> APIRouter:
    fleet, settings = services.fleet, services.settings
    router = APIRouter(tags=["native"])

    @router.get("/slots", **describe(list[ShownSlot]))
    async def list_slots(model: str | None = None, fail_on_no_slot: bool = False) -> Response:
        """The current slots of a model; an empty list while it is not loaded."""
        if not settings.slots:
            raise NotSupported("This server does not support slots endpoint. Start it with `--slots`")
        found = fleet.catalogue.find(model)
        slots, kind = await fleet.slots(found), await fleet.kind(found)
        info = fleet.info(found)
        lookup = found.options.draft.lookup > 0
        drafts = info is not None and (lookup or info.draft_slots > 0)
        if fail_on_no_slot and slots and all(slot.is_processing for slot in slots):
            raise Unavailable(f"all {len(slots)} slots are processing a request", retry_after=1)
        return JSON([_shown(slot, kind, drafts=drafts) for slot in slots])

    @router.post("/slots/{id_slot}", **describe(SlotAnswer, body=SlotActionBody, optional=True))
    async def act_on_slot(
        request: Request, id_slot: Annotated[int, Path(ge=0, lt=2**31)], action: Action, model: str | None = None
    ) -> Response:
        """Save the tokens of a slot to a file, restore them, or erase them. Waits until the slot is free."""
        body = await read_body(request, SlotActionBody, limit=settings.max_body_bytes, optional=True)
        if model is not None and body.model not in (None, model):
            raise InvalidRequest(
                f"the model in the query is {model!r}, but in the body {body.model!r}: send one of them", param="model"
            )
        folder, filename = "", ""
        if action != "erase":
            if settings.slot_save_path is None:
                raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
            if body.filename is None:
                raise InvalidRequest(f"{action} requires a filename", param="filename")
            folder, filename = str(settings.slot_save_path), body.filename
        done = await fleet.act_on_slot(
            fleet.catalogue.find(model or body.model),
            SlotAction(id_slot, action, folder, filename),
        )
        return JSON(_answer(id_slot, action, filename, done))

    return router


def _answer(id_slot: int, action: Action, filename: str, done: SlotDone) -> SlotAnswer:
    milliseconds = 1000 * done.seconds
    answer = SlotAnswer(id_slot=id_slot, filename=filename or msgspec.UNSET)
    match action:
        case "erase":
            answer.n_erased = done.tokens
        case "save":
            answer.n_saved, answer.n_written = done.tokens, done.size
            answer.timings = SlotTimings(save_ms=milliseconds)
        case "restore":
            answer.n_restored, answer.n_read = done.tokens, done.size
            answer.timings = SlotTimings(restore_ms=milliseconds)
    return answer


_NO_TOKEN: Final = NextToken(has_next_token=False, n_remain=-1, n_decoded=0)


def _shown(slot: SlotState, kind: ModelKind | None, *, drafts: bool) -> ShownSlot:
    shown = struct_from(
        ShownSlot,
        slot,
        speculative=drafts,
        n_prompt_tokens_processed=slot.n_computed_tokens,
        n_prompt_tokens_cache=slot.n_cached_tokens,
        kind=kind,
        timings=msgspec.UNSET,
    )
    if slot.sampling is not None:
        left = -1 if slot.max_tokens is None else slot.max_tokens - slot.n_decoded
        shown.params = generation_settings(slot.sampling, max_tokens=slot.max_tokens, adapters=slot.adapters) | {
            "n_keep": slot.n_keep,
            "n_discard": slot.n_discard,
        }
        next_token = NextToken(has_next_token=True, n_remain=left, n_decoded=slot.n_decoded)
        shown.next_token = [next_token if slot.is_processing else _NO_TOKEN]
        shown.timings = native_timings(
            slot.timings, cached=slot.n_cached_tokens, prompt=slot.n_computed_tokens, predicted=slot.n_decoded
        )
    return shown
