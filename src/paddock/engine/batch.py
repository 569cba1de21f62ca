"""The batch of one step, as libllama expects it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paddock.engine.libllama import lib
from paddock.errors import DecodeFailed
from paddock.types import Span

# Reading all weights once more takes a GPU as long as computing about this many tokens.
_MAX_PADDING = 64
_NO_SHIFTS: Mapping[int, int] = {}


class Batch:
    """A llama_batch allocated once and filled through numpy views of its arrays."""

    def __init__(self, capacity: int) -> None:
        self.struct = lib.llama_batch_init(capacity, 0, 1)
        self.capacity = capacity
        self._token = _view(self.struct.token, capacity)
        self._position = _view(self.struct.pos, capacity)
        self._output = _view(self.struct.logits, capacity)
        _view(self.struct.n_seq_id, capacity)[:] = 1
        # libllama reads each token's sequence through its own pointer. All point into one array.
        self._sequence = np.zeros(capacity, np.int32)
        begin = self._sequence.ctypes.data
        for index in range(capacity):
            address = ctypes.c_void_p(begin + 4 * index)
            self.struct.seq_id[index] = ctypes.cast(address, ctypes.POINTER(ctypes.c_int32))

    def fill(
        self, spans: Sequence[Span], *, n_vocab: int, sizes: Sequence[int] = (), shifts: Mapping[int, int] = _NO_SHIFTS
    ) -> None:
        """Write the spans and their drafts one after another, each padded to its size. `shifts`: so many positions
        fewer than tokens are before the spans of a sequence.
        """
        sizes = sizes or [len(span.tokens) + len(span.draft) for span in spans]
        total = sum(sizes)
        if not 0 < total <= self.capacity:
            raise DecodeFailed(f"a step of {total} tokens does not fit a batch of {self.capacity}")
        tokens: list[int] = []
        self._output[:total] = 0
        at = 0
        for span, size in zip(spans, sizes, strict=True):
            tokens += span.tokens
            start = span.start - shifts.get(span.sequence, 0)
            if size == 1:
                self._position[at] = start
                self._sequence[at] = span.sequence
            else:
                tokens += span.draft
                tokens += span.tokens[-1:] * (size - len(span.tokens) - len(span.draft))
                self._position[at : at + size] = np.arange(start, start + size)
                self._sequence[at : at + size] = span.sequence
            if span.sampler is not None:
                last = at + len(span.tokens) - 1
                self._output[last : last + 1 + len(span.draft)] = 1
            if span.targets:
                self._output[at : at + len(span.targets)] = 1
            at += size
        if min(tokens) < 0 or max(tokens) >= n_vocab:
            raise DecodeFailed("a token id is outside the vocabulary")
        self._token[:total] = tokens
        self.struct.n_tokens = total

    def decode_embeddings(
        self, context: Any, sequence: int, positions: npt.NDArray[np.int32], embeddings: npt.NDArray[np.float32]
    ) -> int:
        """Decode rows of embeddings instead of tokens, without outputs. Returns the status. `positions` has a row for
        each kind of position that the model has.
        """
        count = len(embeddings)
        if not 0 < count <= self.capacity or positions.shape[1] != count:
            raise DecodeFailed(f"a step of {count} embeddings does not fit a batch of {self.capacity}")
        positions, embeddings = np.ascontiguousarray(positions), np.ascontiguousarray(embeddings)
        self._output[:count] = 0
        self._sequence[:count] = sequence
        struct = type(self.struct)(
            n_tokens=count,
            embd=embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=self.struct.n_seq_id,
            seq_id=self.struct.seq_id,
            logits=self.struct.logits,
        )
        status = int(lib.llama_decode(context, struct))
        lib.llama_synchronize(context)  # the arrays are freed with this call
        return status

    def decode(self, context: Any, spans: Sequence[Span], *, n_vocab: int, sizes: Sequence[int] = ()) -> None:
        """Fill the batch and decode it. Raises `DecodeFailed`."""
        self.fill(spans, n_vocab=n_vocab, sizes=sizes)
        status = int(lib.llama_decode(context, self.struct))
        if status != 0:
            raise DecodeFailed(f"llama_decode failed with {status} on a batch of {self.struct.n_tokens} tokens")

    def output_all(self) -> None:
        """Request an output for every token, as pooling needs it."""
        self._output[: self.struct.n_tokens] = 1


def _view(pointer: Any, size: int) -> npt.NDArray[Any]:
    return np.ctypeslib.as_array(pointer, shape=(size,))


def paired_sizes(spans: Sequence[Span]) -> list[int]:
    """How many tokens to compute for each span, so that no token is computed alone: see `max_exact_batch`."""
    sequences = {span.sequence for span in spans}
    return [
        len(span.tokens) + (len(span.tokens) == 1 and not sequences & {span.sequence - 1, span.sequence + 1})
        for span in spans
    ]


def padded_sizes(spans: Sequence[Span], *, capacity: int, n_ctx: int) -> list[int]:
    """How many tokens to compute for each span. libllama computes streams of equal length in one pass. On a GPU a few
    padding tokens, forgotten afterwards, cost less than one more pass.
    """
    sizes = [len(span.tokens) + len(span.draft) for span in spans]
    room = capacity - sum(sizes)
    longest = max(sizes)
    for index in sorted(range(len(spans)), key=lambda index: -sizes[index]):
        size = sizes[index]
        more = longest - size
        if size == 1 or more > _MAX_PADDING or spans[index].start + longest > n_ctx:
            longest = size
        elif 0 < more <= room:
            sizes[index] = longest
            room -= more
    return sizes
