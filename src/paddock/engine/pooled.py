"""Embeddings and reranking with libllama."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paddock.engine import library
from paddock.engine.batch import Batch
from paddock.engine.fingerprint import fingerprint
from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import POOLING_TYPES
from paddock.engine.loading import computes_on_cpu, context_params, load_model, model_info, new_context
from paddock.engine.vocab import LlamaVocab
from paddock.errors import DecodeFailed
from paddock.types import EngineOptions, Span

# More inputs per step do not raise the throughput: the step has enough tokens to use the whole machine.
_MOST_SEQUENCES = 64


class PooledContext:
    """Implements `PooledEngine` with a loaded model. The first step creates the context. Every step is validated here,
    because libllama aborts the process on a bad one.
    """

    def __init__(self, model: Any, vocab: LlamaVocab, path: Path, options: EngineOptions) -> None:
        assert options.pooling is not None, "the caller chooses a pooling engine"
        self._model = model
        self._options = options
        self.vocab = vocab
        trained = int(lib.llama_model_n_ctx_train(model))
        longest = min(trained, options.n_batch, options.n_ctx or trained)
        # The attention mask covers all pairs of tokens in a step, so larger batches are slower.
        self.n_batch = min(options.n_ubatch, options.n_batch)
        # The bits of a result depend on the other inputs of its step, so a deterministic input is alone.
        self.n_sequences = 1 if options.deterministic else min(_MOST_SEQUENCES, self.n_batch)
        # libllama divides the batch evenly among the sequences and aborts if there is a remainder.
        self._planned = -(-max(self.n_batch, longest) // self.n_sequences) * self.n_sequences
        self._context: Any = None
        self._batch = Batch(self._planned)
        self._pools = options.pooling != "none"
        ranks = options.pooling == "rank"
        self._width = int((lib.llama_model_n_cls_out if ranks else lib.llama_model_n_embd_out)(model))
        self.is_cpu_bound = computes_on_cpu(model, options.n_gpu_layers)
        self.info = model_info(
            model,
            vocab,
            n_ctx=longest,
            n_ctx_train=trained,
            fingerprint=fingerprint(path, options, unified=True, exact_batch=self.n_sequences),
            reuse="none",
            pooling=options.pooling,
            n_embd=self._width,
        )

    def _open(self) -> None:
        options, planned = self._options, self._planned
        params = context_params(options, n_ctx=planned, n_batch=planned, unified=True)
        # Bidirectional attention needs all tokens of an input in one pass.
        params.n_ubatch = planned
        params.n_seq_max = self.n_sequences
        params.embeddings = True
        params.pooling_type = POOLING_TYPES[options.pooling or "none"]
        self._context = new_context(self._model, params, options)
        self._memory = lib.llama_get_memory(self._context)
        decodes = self._memory and lib.llama_model_has_decoder(self._model)
        self._compute = lib.llama_decode if decodes else lib.llama_encode

    def pair(self, query: str, document: str) -> list[int]:
        return self.vocab.pair(query, document)

    def pool(self, inputs: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        if len(inputs) > self.n_sequences:
            raise DecodeFailed(f"a step of {len(inputs)} inputs exceeds the limit of {self.n_sequences}")
        if not all(0 < len(tokens) <= self.info.n_ctx for tokens in inputs):
            raise DecodeFailed(f"an input has no tokens, or more than {self.info.n_ctx}")
        if self._context is None:
            self._open()
        spans = [Span(sequence, 0, list(tokens)) for sequence, tokens in enumerate(inputs)]
        self._batch.fill(spans, n_vocab=self.vocab.size)
        self._batch.output_all()
        if self._memory:
            lib.llama_memory_clear(self._memory, False)
        status = int(self._compute(self._context, self._batch.struct))
        if status != 0:
            raise DecodeFailed(f"libllama failed with {status} on a batch of {self._batch.struct.n_tokens} tokens")
        if self._pools:
            return [self._pooled(sequence) for sequence in range(len(inputs))]
        return self._unpooled([len(tokens) for tokens in inputs])

    def release(self) -> None:
        if self._context is not None:
            lib.llama_free(self._context)
            self._context = None

    def close(self) -> None:
        self.release()

    def _pooled(self, sequence: int) -> npt.NDArray[np.float32]:
        pointer = lib.llama_get_embeddings_seq(self._context, sequence)
        if not pointer:
            raise DecodeFailed("libllama computed no vector for an input")
        return np.ctypeslib.as_array(pointer, shape=(1, self._width)).copy()

    def _unpooled(self, sizes: list[int]) -> list[npt.NDArray[np.float32]]:
        pointer = lib.llama_get_embeddings(self._context)
        if not pointer:
            raise DecodeFailed("libllama computed no vectors")
        rows = np.ctypeslib.as_array(pointer, shape=(sum(sizes), self._width)).copy()
        return np.split(rows, np.cumsum(sizes)[:-1])


class LlamaPooledEngine(PooledContext):
    """A model that is loaded for vectors only."""

    def __init__(self, path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        library.start(verbose=options.verbose)
        model = load_model(path, options, on_progress)
        super().__init__(model, LlamaVocab(model), path, options)
        self.pool([[0]])  # a build that does not work on this machine dies here, while loading

    def close(self) -> None:
        super().close()
        lib.llama_model_free(self._model)
