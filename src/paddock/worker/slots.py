"""A look at the slots: what the scheduler knows of them, with the times that only the engine thread knows."""

from __future__ import annotations

from collections.abc import Iterable

from paddock.scheduling import Request, Slot
from paddock.types import SlotState, Timings


def slot_states(slots: Iterable[Slot], *, n_ctx: int, now: float) -> list[SlotState]:
    return [_state(slot, n_ctx, now) for slot in slots]


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
        n_decoded=request.produced,
        max_tokens=request.max_tokens if request.max_tokens < n_ctx else -1,
        sampling=request.answer.sampling,
        timings=_timings(request, now),
    )


def _timings(request: Request, now: float) -> Timings:
    clock = request.answer.clock
    if not clock.begun:
        return Timings()
    return Timings(
        prompt_n=max(min(request.computed, request.prompt_size) - request.cached, 0),
        prompt_ms=1000 * ((clock.first or now) - clock.begun),
        predicted_n=request.produced,
        predicted_ms=1000 * (clock.newest - clock.first),
    )
