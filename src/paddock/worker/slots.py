"""The state of slots: from the scheduler, with the times that the engine thread measures."""

from __future__ import annotations

from paddock.scheduling import Slot
from paddock.types import SlotState, SlotView


def slot_view(slot: Slot) -> SlotView:
    """For the live view."""
    request = slot.request
    if request is None or not slot.busy:
        return SlotView(slot.id)
    return SlotView(
        slot.id,
        "answer" if request.produced else "prompt",
        prompt_tokens=request.given_size,
        prompt_done=min(request.computed, request.given_size),
        cached_tokens=request.cached,
        answered_tokens=request.produced,
        drafted_tokens=request.drafted,
        accepted_tokens=request.accepted,
        key=request.key,
    )


def slot_state(slot: Slot, *, n_ctx: int, now: float) -> SlotState:
    """For `GET /slots`."""
    request = slot.request
    if request is None:
        return SlotState(slot.id, n_ctx, n_past=len(slot.prefix.tokens))
    return SlotState(
        slot.id,
        n_ctx,
        is_processing=slot.busy,
        n_past=request.computed if slot.busy else len(slot.prefix.tokens),
        id_task=request.id,
        n_prompt_tokens=request.given_size,
        n_cached_tokens=request.cached,
        n_computed_tokens=max(min(request.computed, request.given_size) - request.cached, 0),
        n_decoded=request.produced,
        max_tokens=request.answer.request.max_tokens,
        n_keep=request.answer.request.n_keep,
        n_discard=request.answer.request.n_discard,
        sampling=request.answer.request.sampling,
        adapters=request.adapters,
        timings=request.answer.timings(request, now),
    )
