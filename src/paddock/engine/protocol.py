"""The interfaces of an engine: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from paddock.types import (
    Adapters,
    CacheShape,
    Copied,
    InfillTokens,
    MediaKind,
    MediaSpan,
    ModelInfo,
    Operation,
    Piece,
    Sampled,
    SamplingParams,
    Span,
    StateOrigin,
)

if TYPE_CHECKING:
    from paddock.engine.grammar import GrammarSource


class Vocab(Protocol):
    """Text ⇄ token ids. Thread-safe, also while the engine decodes."""

    chat_template: str | None
    bos: str
    eos: str
    adds_bos: bool

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""

    @property
    def longest_piece(self) -> int:
        """The most bytes of one token. It shows without tokenizing that a text is far too long."""

    @property
    def infill(self) -> InfillTokens | None:
        """None: the model was not trained to fill gaps."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes:
        """The visible bytes of this token; empty for control tokens."""

    def name(self, token: int) -> bytes:
        """Like `piece`, but with the names of control tokens."""

    def render_builtin(self, messages: Sequence[tuple[str, str]], *, starts_reply: bool) -> str | None:
        """Render roles and texts by the code of the engine that `chat_template` names or resembles; None if there is
        no such code. `starts_reply` ends the text with the start of a reply.
        """


class ReadPrompt(Protocol):
    """A prompt with media, tokenised."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def spans(self) -> tuple[MediaSpan, ...]: ...


class MediaReader(Protocol):
    """Images and sound in prompts."""

    kinds: tuple[MediaKind, ...]
    marker: str
    """Stands for a file in a text. No text contains it by chance."""
    encoded: int
    """How many chunks were encoded so far."""

    def read(self, text: str, files: Sequence[bytes], *, add_special: bool) -> ReadPrompt:
        """Tokenise a text with a marker for each file, whose formats the caller has checked. Thread-safe.

        Raises `BrokenMedia` for a file that cannot be decoded.
        """

    def is_encoded(self, chunk: Any) -> bool:
        """Whether the chunk of a `MediaSpan` can be decoded without encoding it first."""

    def encode(self, chunk: Any) -> Any:
        """Encode a chunk, which may take seconds. Otherwise the step that needs it does."""

    def take_encode_seconds(self) -> list[float]:
        """How long each encoding since the last call took."""


class BrokenMedia(Exception):
    """The file with the number `index` cannot be decoded."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Engine(Protocol):
    """One model and its cache. Only the engine thread uses it, except for constants and methods that are documented as
    thread-safe.
    """

    info: ModelInfo
    shape: CacheShape
    grammars: GrammarSource
    """Compiles constraints for `sampler`."""
    origin: StateOrigin
    """What the keys and values in the cache depend on."""
    n_batch: int
    """The most tokens of one step."""
    is_cpu_bound: bool
    """Its steps use the CPU's cores, so that two concurrent steps slow each other down."""

    @property
    def media(self) -> MediaReader | None:
        """None: prompts are text only."""

    @property
    def vocab(self) -> Vocab: ...
    def sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Any = None) -> Any:
        """The sampler of one answer, for its spans. It may take a while. Thread-safe.

        `sibling(params)` of a sampler returns one for the same prompt and another seed at once.
        """

    def apply(self, operations: Sequence[Operation]) -> Sequence[Copied]:
        """Change the cache by these operations, in order. Returns the copies between cells and host memory."""

    def submit(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> None:
        """Start one step with these adapters active. A GPU computes it after this returns. The next call is `collect`.

        With `exact`, no bit of a result depends on the other spans. The step then has at most `info.exact_batch` spans
        of one token each, or one span of several.

        Raises `NoCells` if there is no room for the step; nothing has changed then.
        """

    def collect(self) -> list[Sampled | None]:
        """Wait for the submitted step. Returns the sampled token of each span, or None for a span without a sampler and
        without targets.
        """

    def decode(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> list[Sampled | None]:
        """`submit` and `collect`."""

    def used_sequences(self) -> list[int]:
        """The sequences that have cells."""

    def view_pieces(self, pieces: Sequence[Piece]) -> Any:
        """Views of these pieces in host memory, for `pack`. Nothing is copied, and the pieces never change. With
        checkpoints the last piece is the one at the end of the others.
        """

    def pack(self, views: Any) -> Iterator[bytes | memoryview]:
        """The bytes of the views, in parts. Thread-safe."""

    def packed_size(self, views: Any) -> int:
        """How many bytes that is. Thread-safe."""

    def unpack(self, data: memoryview, tokens: int) -> Any:
        """The state of this many tokens, as `pack` wrote it, for `Adopt` and `AdoptCheckpoint`. Thread-safe.

        Raises `ValueError` if the number of bytes is wrong.
        """

    def embeddings(self) -> PooledEngine:
        """A second context of the same model, for embeddings. It takes memory from its first step until `release`.
        Thread-safe, but its steps must run on the engine thread.
        """

    def close(self) -> None: ...


class PooledEngine(Protocol):
    """A model that computes vectors of whole inputs. It has no cache."""

    info: ModelInfo
    """`n_ctx` is the most tokens of one input."""
    n_batch: int
    """The most tokens of several inputs in one step. A single input may have `n_ctx` tokens."""
    n_sequences: int
    """The most inputs of one step."""
    is_cpu_bound: bool
    """As in `Engine`."""

    @property
    def vocab(self) -> Vocab: ...
    def pair(self, query: str, document: str) -> list[int]:
        """The tokens of a query and a document, as the ranking model expects them. Thread-safe."""

    def pool(self, inputs: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Run one step. Returns a matrix for each input: one row, or without pooling one row for each token."""

    def release(self) -> None:
        """Free the memory of its context. The next step creates it again."""

    def close(self) -> None: ...
