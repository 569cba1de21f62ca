"""The cache of an engine, and the operations on it."""

from __future__ import annotations

import sys
from typing import Any, Literal

import msgspec

from paddock.types.models import Adapters, Reuse

_BUFFER_STEP = 256


class SlotPrefix(msgspec.Struct, frozen=True):
    """The tokens of a slot's last request, and which requests may reuse them."""

    tokens: list[int] = []
    namespace: str = ""
    deterministic: bool = False
    adapters: Adapters = ()


class StateOrigin(msgspec.Struct, frozen=True):
    """What keys and values depend on besides their tokens. A saved state is valid only where all of this is equal."""

    engine: str
    model: str
    """The digest of the model's file."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    arithmetic: str
    """Options that change only the last bits. They matter to deterministic requests only."""
    adapters: tuple[str, ...] = ()
    """As in `ModelInfo`. Only the adapters that were active for the tokens matter."""
    settings: str = ""
    """Options that change a state, and not only its last bits: RoPE, YaRN, replaced metadata."""


class SnapshotSize(msgspec.Struct, frozen=True):
    """Host memory for the whole state of a sequence, in bytes: a fixed part, and a part for each token."""

    fixed: int = 0
    per_token: int = 0
    per_window_token: int = 0
    """For layers that attend to the last `window` tokens only."""
    window: int = 0

    def bytes(self, tokens: int) -> int:
        return self.fixed + self.per_token * tokens + self.per_window_token * min(tokens, self.window)


class CacheShape(msgspec.Struct, frozen=True):
    """The properties of an engine's cache that the scheduler needs."""

    cells: int
    """The number of cells. If each sequence has its own stream, they are divided evenly."""
    unified: bool
    """All sequences share one pool of cells. Otherwise each has its own stream."""
    bytes_per_token: int
    """Host memory for the keys and values of a token; 0: they cannot be stored there."""
    ram_bytes: int = 0
    """Host memory limit for prefixes."""
    reuse: Reuse = "prefix"
    """The state of sliding-window, recurrent and hybrid models is more than keys and values by position. A sequence can
    be cut only where there is a checkpoint of the rest. If it cannot be divided at all, it is copied as a whole.
    """
    snapshot: SnapshotSize = SnapshotSize()
    """The size of a checkpoint, or of such a copy."""
    checkpoints: int = 32
    """The most checkpoints of a sequence."""
    delimiters: frozenset[int] = frozenset()
    """Tokens that begin or end a message."""
    has_exact_copies: bool = True
    """A copied state continues bit-identically. Otherwise deterministic requests use no copies."""
    min_copied: int = 1
    """Computing fewer tokens than this is faster than copying them."""
    max_copied: int = 1 << 30
    """Tokens that may be copied to host memory between two steps while requests wait."""
    max_restored: int = 1 << 30
    """Tokens that may be copied from host memory between two steps while other requests run."""
    forks_on_device: bool = False
    """A copy between streams stays on the GPU, so it is much faster than one from host memory."""
    idle_cells: int = 0
    """Unified cells that finished sequences may keep while requests run. More slow down every step noticeably."""
    idle_cell_seconds: float = 0.0
    """By how much one idle cell slows down a step that generates."""
    spare_sequences: int = 0
    """Additional sequences, for finished requests that keep their cells."""
    saves_answers: bool = True
    """Copy generated tokens to host memory too. False: computing them again is faster."""
    state_bytes: tuple[int, int] = (0, 0)
    """The size of the state that a copy goes through: a fixed part, and a part for each token. (0, 0): no buffer."""
    max_rolled_back: int = 0
    """So many of the newest tokens of a running sequence can be removed again, although a prefix of it cannot be
    shared.
    """
    part_tokens: int = 1 << 30
    """Unified cells, and parts of streams that come from a GPU, are copied in parts of at most so many tokens, so that
    a small buffer is enough. A stream is restored as a whole.
    """
    saves_stream_parts: bool = False
    """Some tokens of a stream can be saved. Otherwise it is saved as a whole."""
    stages_parts: bool = False
    """These go through a buffer of `part_tokens`: they come from a GPU. Otherwise they need none."""

    @property
    def saves_parts(self) -> bool:
        """Whether saving some tokens of a sequence costs only what these cost."""
        return self.unified or self.saves_stream_parts

    @property
    def most_drafted(self) -> int:
        """How many drafted tokens a sequence may have in a step: wrong ones must be removed again."""
        return sys.maxsize if self.reuse == "prefix" else self.max_rolled_back

    def saved_through(self, tokens: int) -> int:
        """For how many tokens a buffer is needed to save some of a sequence of so many."""
        if self.unified or not self.saves_stream_parts:
            return tokens
        return min(tokens, self.part_tokens) if self.stages_parts else 0

    def buffer_for(self, tokens: int) -> int:
        """The size of the buffer for a copy of so many tokens, in units of `bytes_per_token`."""
        fixed, per_token = self.state_bytes
        if not per_token:
            return 0
        # Rounded up, because a new buffer costs as much as the copy.
        rounded = -(-tokens // _BUFFER_STEP) * _BUFFER_STEP
        if tokens <= self.part_tokens:
            rounded = min(rounded, self.part_tokens)
        tokens = self.part_tokens if self.unified else rounded
        return -(-(fixed + per_token * tokens) // self.bytes_per_token)


class Piece(msgspec.Struct, frozen=True):
    """Part of a span of keys and values in host memory. One without tokens is a checkpoint."""

    span: int
    offset: int
    length: int


class Forget(msgspec.Struct, frozen=True):
    """Drop a sequence's cells from `start` on."""

    sequence: int
    start: int = 0


class Fork(msgspec.Struct, frozen=True):
    """Append the tokens `start..length` of `source` to the sequence `target`, which holds `start` tokens."""

    source: int
    target: int
    length: int
    start: int = 0


class Save(msgspec.Struct, frozen=True):
    """Copy the tokens `start..end` of a sequence to host memory, as the span `span`."""

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
    """Store the tokens `start..end` of a state that `Engine.unpack` returned in host memory, as the span `span`."""

    state: Any
    start: int
    end: int
    span: int


class Drop(msgspec.Struct, frozen=True):
    """Free a span or a checkpoint in host memory."""

    span: int


class Reserve(msgspec.Struct, frozen=True):
    """Have a buffer for copies, of this many times `bytes_per_token`. 0: free it."""

    size: int


class SaveCheckpoint(msgspec.Struct, frozen=True):
    """Copy what windowed and recurrent layers know of a sequence that holds `length` tokens to host memory, as the
    checkpoint `checkpoint`.
    """

    sequence: int
    length: int
    checkpoint: int


class LoadCheckpoint(msgspec.Struct, frozen=True):
    """Complete a sequence that has the keys and values of `length` tokens with a checkpoint of the same tokens."""

    sequence: int
    length: int
    checkpoint: int


class CopyCheckpoint(msgspec.Struct, frozen=True):
    """The same with the present state of the sequence `source`, which holds the same tokens."""

    source: int
    target: int
    length: int


class AdoptCheckpoint(msgspec.Struct, frozen=True):
    """Store the checkpoint of a state that `Engine.unpack` returned in host memory."""

    state: Any
    checkpoint: int


Operation = (
    Forget
    | Fork
    | Save
    | Restore
    | Adopt
    | Drop
    | Reserve
    | SaveCheckpoint
    | LoadCheckpoint
    | CopyCheckpoint
    | AdoptCheckpoint
)


class Copied(msgspec.Struct, frozen=True):
    """A copy between cells and host memory that the engine made."""

    kind: Literal["save", "restore"]
    size: int
    """The bytes that were really copied: of a stream that is copied as a whole, all."""
    seconds: float
