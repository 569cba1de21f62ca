"""The memory of an engine, as those who decide about it know it, and what they may have done to it."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.types.models import Adapters, Reuse


class SlotPrefix(msgspec.Struct, frozen=True):
    """The tokens that a slot remembers, and with whom they are shared."""

    tokens: list[int] = []
    namespace: str = ""
    deterministic: bool = False
    adapters: Adapters = ()


class StateOrigin(msgspec.Struct, frozen=True):
    """What keys and values depend on besides their tokens: they are of use only where all of this is the same."""

    engine: str
    model: str
    """A digest of the model's file."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    arithmetic: str
    """What changes no more than the last bits, and therefore matters to deterministic requests alone."""
    adapters: tuple[str, ...] = ()
    """As of `ModelInfo`; those that act on the tokens matter."""


class SnapshotSize(msgspec.Struct, frozen=True):
    """What the whole state of a sequence takes in host memory: bytes, whatever its length, and bytes for each token."""

    fixed: int = 0
    per_token: int = 0
    per_window_token: int = 0
    """In layers that see only the last `window` tokens."""
    window: int = 0


class CacheShape(msgspec.Struct, frozen=True):
    """What the scheduler must know of an engine's memory."""

    cells: int
    """In all; with a stream for each sequence they are divided evenly."""
    unified: bool
    """One pool of cells for all sequences, which can share them, instead of a stream for each."""
    bytes_per_token: int
    """What a token's keys and values take in host memory; 0 where they cannot be kept there."""
    ram_bytes: int = 0
    """The most host memory to keep prefixes in."""
    reuse: Reuse = "prefix"
    """Where a state is more than keys and values by position (sliding windows, recurrent and hybrid models) a part of
    it would be wrong without any error: such a sequence is copied as a whole or not at all.
    """
    snapshot: SnapshotSize = SnapshotSize()
    """What such a copy takes."""
    exact: bool = True
    """Whether a copy goes on as the original does, to the last bit. Where not, deterministic requests use none."""
    least_copied: int = 1
    """Fewer tokens than this are sooner computed than copied from elsewhere."""
    most_copied: int = 1 << 30
    """So many tokens may be copied out between two steps while others wait for the next."""
    spare: int = 0
    """More sequences than can run, for what some have left that is still to be copied out."""
    keeps_answers: bool = True
    """Whether generated tokens are worth copying out, and not sooner computed again."""


class Piece(msgspec.Struct, frozen=True):
    """Part of a span of keys and values in host memory."""

    span: int
    offset: int
    length: int


class Forget(msgspec.Struct, frozen=True):
    """Drop a sequence's cells from `start` on."""

    sequence: int
    start: int = 0


class Fork(msgspec.Struct, frozen=True):
    """Give the sequence `target`, which has as many tokens as `start`, those of `source` from there to `length`."""

    source: int
    target: int
    length: int
    start: int = 0


class Save(msgspec.Struct, frozen=True):
    """Copy the tokens `start..end` of a sequence into host memory under the name `span`."""

    sequence: int
    start: int
    end: int
    span: int


class Restore(msgspec.Struct, frozen=True):
    """Append pieces from host memory to a sequence that holds `start` tokens."""

    sequence: int
    start: int
    pieces: list[Piece]


class Adopt(msgspec.Struct, frozen=True):
    """Keep the tokens `start..end` of a state that `Engine.unpack` made in host memory, under the name `span`."""

    state: Any
    start: int
    end: int
    span: int


class Drop(msgspec.Struct, frozen=True):
    """Free a span of host memory."""

    span: int


Operation = Forget | Fork | Save | Restore | Adopt | Drop
