"""How many answers can be computed in one step so that no bit of one depends on the others.

Matrix products and attention use different code for one, a few or many rows, which adds in different orders. The limits
differ by machine, build and quantisation and are not documented, so they are probed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine.batch import Batch
from paddock.engine.libllama import lib
from paddock.engine.loading import LoadedAdapters, context_params, new_context
from paddock.engine.prefix_memory import PrefixMemory
from paddock.types import EngineOptions, Forget, Span

_MOST = 8
_PROBE_CONTEXT = 1024
_SEED_TOKENS = 8
_LONG = 640  # more than the 512 cells from which CPU attention splits a single query differently
_LONGER = 960
_LENGTHS = (_SEED_TOKENS, _LONG, _LONGER)
_TOKEN = 1

Rows = npt.NDArray[np.float32]


def probe_exact_batch(model: Any, options: EngineOptions, adapters: LoadedAdapters, *, n_vocab: int) -> int:
    """How many answers in streams of their own may share a step, tried in a context like the real one, without and with
    all adapters.
    """
    most = min(options.parallel, _MOST)
    options = msgspec.structs.replace(options, parallel=most)
    params = context_params(options, n_ctx=most * _PROBE_CONTEXT, n_batch=64, unified=False)
    for applied in {(), adapters.all}:
        context = new_context(model, params, options)
        try:
            adapters.apply(context, applied)
            most = max_exact_batch(context, n_vocab=n_vocab, most=most)
        finally:
            lib.llama_free(context)
    return most


def max_exact_batch(context: Any, *, n_vocab: int, most: int) -> int:
    """The largest batch up to `most` in which answers in streams of their own are bit-identical for all batch sizes
    from two on, whatever is beside them, and for a single answer with a second token to compute. 1: even two differ.
    """
    probe = _Probe(context, n_vocab)
    if not probe.is_usable:
        return 1
    expected = probe.next_rows([_LONG], spare=1)[0]
    for count in range(2, most + 1):
        others = [_SEED_TOKENS, _LONGER] * count
        rows = [*probe.next_rows([_LONG] * count), probe.next_rows([*others[: count - 1], _LONG])[-1]]
        if not all(np.array_equal(row, expected) for row in rows):
            return count - 1
    return most


class _Probe:
    """Streams with contexts of any length at no cost: they repeat a few computed tokens."""

    def __init__(self, context: Any, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._batch = Batch(64)
        self._memory = PrefixMemory(context, unified=False, on_gpu=False, scratch=0)
        self._batch.decode(context, [Span(0, 0, [_TOKEN] * _SEED_TOKENS)], n_vocab=n_vocab)
        self._memory.learn(0, _SEED_TOKENS)
        self.is_usable = self._memory.bytes_per_token > 0
        if self.is_usable:
            self._states = {length: self._memory.repeated(0, _SEED_TOKENS, length) for length in _LENGTHS}

    def next_rows(self, lengths: list[int], spare: int = 0) -> Rows:
        """The logits after contexts of these lengths, computed in one step, each with `spare` more tokens."""
        for sequence, length in enumerate(lengths):
            self._memory.apply([Forget(sequence)])
            self._memory.put(sequence, self._states[length])
        spans = [Span(sequence, length, [_TOKEN], sampler=True) for sequence, length in enumerate(lengths)]
        self._batch.decode(self._context, spans, n_vocab=self._n_vocab, sizes=[1 + spare] * len(spans))
        pointer = lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(len(spans), self._n_vocab)).copy()
