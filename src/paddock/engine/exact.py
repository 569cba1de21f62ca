"""How many answers can be computed in one step without a last bit of any depending on the others.

A matrix is multiplied with one vector, a few or many by different code, which adds in different orders; so is attention
over one query or several. What stays the same from how many to how many differs by machine, build and quantisation, and
nothing promises it. But it can be tried.
"""

from __future__ import annotations

from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from paddock.engine.batch import Batch
from paddock.engine.memory import Memory
from paddock.errors import DecodeFailed
from paddock.types import Forget, Span

PROBE_CONTEXT = 1024
_SEED_TOKENS = 8
_LONG = 640  # past the 512 cells from which on the CPU's attention divides a lone query's work otherwise
_LONGER = 960
_LENGTHS = (_SEED_TOKENS, _LONG, _LONGER)
_TOKEN = 1

Rows = npt.NDArray[np.float32]


def rows_alike(context: Any, *, n_vocab: int, most: int) -> int:
    """The largest number up to `most` so that any number of answers from two on, each in a stream of its own, come out
    alike to the last bit, whatever lies beside them; and so does a lone one that is given a second token to compute.
    1 where even two do not.
    """
    probe = _Probe(context, n_vocab)
    if not probe.known:
        return 1
    expected = probe.next_rows([_LONG], spare=1)[0]
    for count in range(2, most + 1):
        among_others = [_SEED_TOKENS, _LONGER] * count
        rows = [*probe.next_rows([_LONG] * count), probe.next_rows([*among_others[: count - 1], _LONG])[-1]]
        if not all(np.array_equal(row, expected) for row in rows):
            return count - 1
    return most


class _Probe:
    """Streams with contexts of any length that cost nothing: a few real tokens over and over."""

    def __init__(self, context: Any, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._batch = Batch(64)
        self._memory = Memory(context, unified=False, on_gpu=False, scratch=0)
        self._decode([Span(0, 0, [_TOKEN] * _SEED_TOKENS)])
        self._memory.learn(0, _SEED_TOKENS)
        self.known = self._memory.bytes_per_token > 0
        if self.known:
            self._states = {length: self._memory.repeated(0, _SEED_TOKENS, length) for length in _LENGTHS}

    def next_rows(self, lengths: list[int], spare: int = 0) -> Rows:
        """What follows contexts of these lengths, computed in one step, each with so many tokens to spare."""
        for sequence, length in enumerate(lengths):
            self._memory.apply([Forget(sequence)])
            self._memory.put(sequence, self._states[length])
        spans = [Span(sequence, length, [_TOKEN], sampler=True) for sequence, length in enumerate(lengths)]
        self._decode(spans, [1 + spare] * len(spans))
        pointer = lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(len(spans), self._n_vocab)).copy()

    def _decode(self, spans: list[Span], sizes: list[int] | None = None) -> None:
        self._batch.fill(spans, n_vocab=self._n_vocab, sizes=sizes or ())
        status = int(lib.llama_decode(self._context, self._batch.struct))
        if status != 0:
            raise DecodeFailed(f"llama_decode failed with {status} on a probe of {len(spans)} sequences")
