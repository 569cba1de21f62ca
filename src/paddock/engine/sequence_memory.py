"""What the engine needs from the memory of a model, whatever its layers keep of a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from paddock.engine.token_positions import TokenPositions
from paddock.types import Copied, Operation, Piece, Reuse, SnapshotSize, StateFormatName


class SequenceMemory(Protocol):
    """The cells of the context and their copies in host memory. Belongs to the engine thread, except for methods that
    are documented as thread-safe.
    """

    reuse: Reuse
    snapshot: SnapshotSize
    has_exact_copies: bool
    """A restored state gives the same bits as the one that was computed."""
    keeps_images: bool
    """Copies are right also where all tokens of an image have one position (M-RoPE)."""
    positions: TokenPositions

    @property
    def bytes_per_token(self) -> int: ...
    @property
    def format_name(self) -> StateFormatName: ...
    @property
    def state_bytes(self) -> tuple[int, int]:
        """The size of a state: a fixed part, and a part for each token."""

    @property
    def saves_stream_parts(self) -> bool:
        """Whether some tokens of a stream can be saved, without a buffer."""

    @property
    def transposed(self) -> bool:
        """Whether values are stored transposed, as they are without flash attention."""

    def apply(self, operations: Sequence[Operation]) -> list[Copied]:
        """Carry out the cache operations of the scheduler. Returns the copies between cells and host memory."""

    def after_decode(self) -> None:
        """Libllama has made the copies between streams that it had put off."""

    def view_pieces(self, pieces: Sequence[Piece]) -> Any:
        """As in `Engine`, like the next three."""

    def pack(self, views: Any) -> Iterator[memoryview]:
        """Thread-safe."""

    def packed_size(self, views: Any) -> int:
        """Thread-safe."""

    def unpack(self, data: memoryview, tokens: int) -> Any:
        """Thread-safe."""
