"""The state of slots and of cached prefixes, for monitoring."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.types.answers import Timings
from paddock.types.models import Adapters
from paddock.types.sampling import SamplingParams


class SlotState(msgspec.Struct, frozen=True):
    """A slot and its current or last request."""

    id: int
    n_ctx: int
    is_processing: bool = False
    n_past: int = 0
    id_task: int = -1
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_computed_tokens: int = 0
    """Computed tokens of the prompt."""
    n_decoded: int = 0
    max_tokens: int | None = None
    """None: as many as fit into the context."""
    n_keep: int = 0
    n_discard: int = 0
    sampling: SamplingParams | None = None
    adapters: Adapters = ()
    timings: Timings = Timings()


class SlotView(msgspec.Struct, frozen=True, array_like=True):
    """A slot in the live view. All numbers are 0 while it is idle."""

    id: int
    state: Literal["idle", "prompt", "answer"] = "idle"
    prompt_tokens: int = 0
    prompt_done: int = 0
    """Processed prompt tokens, including cached ones."""
    cached_tokens: int = 0
    answered_tokens: int = 0
    drafted_tokens: int = 0
    """Guessed tokens of the answer, and those of them that were accepted."""
    accepted_tokens: int = 0
    key: str = ""
    """The name of the request's key."""


class SpanView(msgspec.Struct, frozen=True, array_like=True):
    """A node of the prefix tree in the live view."""

    id: int
    parent: int | None
    start: int
    """The number of tokens before the span."""
    tokens: int
    hot: bool
    """The span is in cells of a sequence."""
    stored: bool
    """The span is in host memory."""
    slots: list[int]
    """The slots whose requests use the span."""
    hits: int
    tenant: str
    """The tenant that the span belongs to."""
    text: str
    """The beginning of the span's text."""


class TreeView(msgspec.Struct, frozen=True):
    cells: int
    cells_used: int
    stored_limit: int
    """Host memory limit in bytes."""
    stored_used: int
    spans: list[SpanView]
    """Each span comes after its parent."""
    omitted: int
    """The number of spans that are left out."""
