"""What is seen of a worker from outside: its running places, and the prefixes that it keeps."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.types.answers import Timings
from paddock.types.models import Adapters
from paddock.types.sampling import SamplingParams


class SlotState(msgspec.Struct, frozen=True):
    """A running place and the request in it, or the last one that was."""

    id: int
    n_ctx: int
    is_processing: bool = False
    n_past: int = 0
    id_task: int = -1
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_computed_tokens: int = 0
    """Of the prompt, so far."""
    n_decoded: int = 0
    max_tokens: int | None = None
    """None: as many as fit into the context."""
    sampling: SamplingParams | None = None
    adapters: Adapters = ()
    timings: Timings = Timings()


class SlotView(msgspec.Struct, frozen=True, array_like=True):
    """What those who look on are shown of a running place: nothing but zeros while it is idle."""

    id: int
    state: Literal["idle", "prompt", "answer"] = "idle"
    prompt_tokens: int = 0
    prompt_done: int = 0
    """How many of them have been read, those that were known among them."""
    cached_tokens: int = 0
    answered_tokens: int = 0
    key: str = ""
    """Whose request it is."""


class SpanView(msgspec.Struct, frozen=True, array_like=True):
    """What they are shown of a span of tokens that is computed once for all who share it."""

    id: int
    parent: int | None
    start: int
    """How many tokens come before it."""
    tokens: int
    hot: bool
    """In cells of a sequence."""
    stored: bool
    """In host memory."""
    slots: list[int]
    """Those that run on it."""
    hits: int
    tenant: str
    """Whose it is."""
    text: str
    """As it begins."""


class TreeView(msgspec.Struct, frozen=True):
    cells: int
    cells_used: int
    stored_limit: int
    """Bytes of host memory."""
    stored_used: int
    spans: list[SpanView]
    """Each after its parent."""
    omitted: int
    """How many more there are."""
