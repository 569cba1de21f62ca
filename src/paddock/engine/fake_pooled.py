"""The fake engine for embeddings and reranking: `paddock serve -m fake: --embedding`, or `--reranking`.

A vector counts the letters of an input, so texts with the same letters are similar. A score is the number of different
letters that query and document have in common. The options are those of the fake engine. An input that contains
`crash:` aborts the process, and one that contains `hang:` hangs if the option `hang=1` is set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from paddock.engine.fake import fake_info, parse
from paddock.engine.fake_text import hang
from paddock.engine.fake_vocab import EOS, FakeVocab
from paddock.types import EngineOptions

_N_CTX = 512
_WIDTH = 26


class FakePooledEngine:
    """Implements `PooledEngine`."""

    def __init__(self, path: str, options: EngineOptions, on_progress: Callable[[float], None] | None = None) -> None:
        """`on_progress` is None for a model that is already loaded."""
        settings = parse(path)
        if on_progress is not None:
            time.sleep(settings.get("load", 0.0))
            on_progress(1.0)
        self.vocab = FakeVocab()
        self.is_cpu_bound = False
        self.n_batch = options.n_ubatch
        self.n_sequences = 8
        self._delay = settings.get("delay", 0.0)
        self._hangs = bool(settings.get("hang"))
        self._pooling = options.pooling
        self.info = fake_info(
            n_ctx=int(settings.get("n_ctx", _N_CTX)),
            n_ctx_train=_N_CTX,
            reuse="none",
            pooling=options.pooling,
            n_embd=1 if options.pooling == "rank" else _WIDTH,
        )

    def pair(self, query: str, document: str) -> list[int]:
        return [*query.encode(), EOS, *document.encode()]

    def pool(self, inputs: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        fits = len(inputs) == 1 or sum(map(len, inputs)) <= self.n_batch
        if len(inputs) > self.n_sequences or not fits or not all(inputs):
            raise AssertionError("libllama would abort on this step")
        time.sleep(self._delay)
        return [self._vectors(list(tokens)) for tokens in inputs]

    def release(self) -> None: ...

    def close(self) -> None: ...

    def _vectors(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        text = bytes(token for token in tokens if token < 256)
        if b"crash:" in text:
            os.abort()
        if self._hangs and b"hang:" in text:
            hang()
        if self._pooling == "rank":
            middle = tokens.index(EOS)
            return np.array([[len({*tokens[:middle]} & {*tokens[middle + 1 :]})]], np.float32)
        rows = np.zeros((len(tokens), _WIDTH), np.float32)
        for row, token in enumerate(tokens):
            rows[row, token % _WIDTH] = 1
        return rows if self._pooling == "none" else rows.sum(axis=0, keepdims=True)
