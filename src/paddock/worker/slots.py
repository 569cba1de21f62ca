"""A look at the slots: what the scheduler knows of them, with the times that only the engine thread knows."""

from __future__ import annotations

from collections.abc import Iterable

from paddock.scheduling import Slot
from paddock.types import SlotState, SlotView


def slot_states(slots: Iterable[Slot], *, n_ctx: int, now: float) -> list[SlotState]:
    return [_state(slot, n_ctx, now) for slot in slots]


def slot_views(slots: Iterable[Slot]) -> list[SlotView]:
    """The same for those who look on from afar."""
    return [_view(slot) for slot in slots]


def _view(slot: Slot) -> SlotView:
    request = slot.request
    if request is None or not slot.busy:
        return SlotView(slot.id)
    return SlotView(
        slot.id,
        "answer" if request.produced else "prompt",
        prompt_tokens=request.prompt_size,
        prompt_done=min(request.computed, request.prompt_size),
        cached_tokens=request.cached,
        answered_tokens=request.produced,
        key=request.key,
    )


def _state(slot: Slot, n_ctx: int, now: float) -> SlotState:
    request = slot.request
    if request is None:
        return SlotState(slot.id, n_ctx, n_past=len(slot.prefix.tokens))
    return SlotState(
        slot.id,
        n_ctx,
        is_processing=slot.busy,
        n_past=request.computed if slot.busy else len(slot.prefix.tokens),
        id_task=request.id,
        n_prompt_tokens=request.prompt_size,
        n_cached_tokens=request.cached,
        n_computed_tokens=max(min(request.computed, request.prompt_size) - request.cached, 0),
        n_decoded=request.produced,
        max_tokens=request.answer.max_tokens,
        sampling=request.answer.sampling,
        adapters=request.adapters,
        timings=request.answer.timings(request, now),
    )
