"""The seam between Paddock and whatever does the arithmetic: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paddock.types import (
    Adapters,
    CacheShape,
    Constraint,
    InfillTokens,
    ModelInfo,
    Operation,
    Piece,
    Sampled,
    SamplingParams,
    Span,
    StateOrigin,
)


class Vocab(Protocol):
    """Words ⇄ token ids. Safe to use from any thread, also while the engine decodes."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos(self) -> str: ...
    @property
    def eos(self) -> str: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ...

    @property
    def longest_piece(self) -> int:
        """The most bytes one token can stand for, so that a hopelessly long text is refused without tokenising it."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes:
        """The bytes a reader sees for this token; nothing for control tokens."""
        ...

    def name(self, token: int) -> bytes:
        """The same, but control tokens by the names that stand for them in text."""
        ...

    @property
    def infill(self) -> InfillTokens | None:
        """None where the model was not made to fill gaps."""
        ...


class Engine(Protocol):
    """One model and its cache. It belongs to the engine thread alone, but for what never changes and what says so."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def vocab(self) -> Vocab: ...
    @property
    def shape(self) -> CacheShape: ...
    @property
    def origin(self) -> StateOrigin:
        """What the keys and values in its cache depend on."""
        ...

    @property
    def n_batch(self) -> int:
        """The most tokens one step may hold."""
        ...

    @property
    def is_cpu_bound(self) -> bool:
        """Whether its steps keep the CPU's cores busy, so that two at once would hinder each other."""
        ...

    def prepare_constraints(self) -> None:
        """Build what `compile` needs of the vocabulary, unless it was built. It may take seconds. Safe to call from any
        thread.
        """
        ...

    def compile(self, constraint: Constraint) -> Any:
        """Make a constraint ready for `sampler`, or raise `InvalidRequest`. It may take a while. Safe to call from any
        thread.
        """
        ...

    def sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Any = None) -> Any:
        """An answer's own way of choosing tokens, to be handed back in its spans. Safe to call from any thread.

        It may take a while. `sibling(params)` makes another one of it, for the same prompt with another seed, at once.
        """
        ...

    def apply(self, operations: Sequence[Operation]) -> None:
        """Change the cache as told, in this order."""
        ...

    def decode(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> list[Sampled | None]:
        """Run one step with these adapters active. Returns the sampled token of each span, or None for a span without a
        sampler and without targets.

        With `exact`, no bit of a result depends on the other spans. The step then has at most `info.exact_batch` spans
        of one token each, or one span of several.
        """
        ...

    def used_sequences(self) -> list[int]:
        """The sequences that have cells."""
        ...

    def view_pieces(self, pieces: Sequence[Piece]) -> Any:
        """What host memory holds there, for `pack`. Nothing is copied, and nobody writes to it any more."""
        ...

    def pack(self, views: Any) -> Iterator[bytes | memoryview]:
        """The same as bytes, part by part. Safe to call from any thread."""
        ...

    def unpack(self, data: memoryview, tokens: int) -> Any:
        """A state of so many tokens, as `pack` wrote it, ready to be adopted. Safe to call from any thread.

        Raises `ValueError` if the bytes are not as many as these tokens have.
        """
        ...

    def close(self) -> None: ...


class PooledEngine(Protocol):
    """A model that makes vectors of whole inputs. It remembers nothing from one step to the next."""

    @property
    def info(self) -> ModelInfo:
        """Its `n_ctx` is the most tokens that one input may have."""
        ...

    @property
    def vocab(self) -> Vocab: ...
    @property
    def n_batch(self) -> int:
        """The most tokens that several inputs in one step may have; one alone may have as many as fit an input."""
        ...

    @property
    def n_sequences(self) -> int:
        """The most inputs one step may hold."""
        ...

    @property
    def is_cpu_bound(self) -> bool:
        """As of `Engine`."""
        ...

    def pair(self, query: str, document: str) -> list[int]:
        """The tokens by which the model judges how well the one answers the other. Safe to call from any thread."""
        ...

    def pool(self, inputs: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Run one step. Returns a matrix for each input: one row, or without pooling a row for each of its tokens."""
        ...

    def close(self) -> None: ...
