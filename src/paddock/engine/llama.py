"""The engine over libllama: one model, one context, used by one thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from paddock.engine import library
from paddock.engine.sampling import sample
from paddock.engine.vocab import LlamaVocab
from paddock.errors import ModelLoadFailed, PaddockError
from paddock.types import EngineOptions, ModelInfo, Span

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_CACHE_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the bindings leave out
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "iq4_nl": lib.GGML_TYPE_IQ4_NL,
}
_WARM_UP_TOKENS = 8


class DecodeError(PaddockError):
    """libllama could not run a step. The cache is in doubt after it, so the worker gives up."""

    code = "decode_failed"


class LlamaEngine:
    """Implements `Engine`. Every batch is validated here, because libllama aborts the process on a bad one."""

    def __init__(self, path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        library.start(verbose=options.verbose)
        self._model = _load_model(path, options, on_progress)
        self.vocab = LlamaVocab(self._model)
        trained = int(lib.llama_model_n_ctx_train(self._model))
        # Past its trained context a model only babbles, so cells beyond it would be memory spent on nothing.
        n_ctx = min(options.n_ctx or trained, trained)
        self.n_batch = min(options.n_batch, n_ctx)
        self._context = _new_context(self._model, options, n_ctx=n_ctx, n_batch=self.n_batch)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = _Batch(self.n_batch)
        self._warm_up()
        self.info = ModelInfo(
            description=_description(self._model),
            n_ctx=int(lib.llama_n_ctx(self._context)),
            n_ctx_train=trained,
            n_vocab=self.vocab.size,
            n_params=int(lib.llama_model_n_params(self._model)),
            size_bytes=int(lib.llama_model_size(self._model)),
        )

    def decode(self, spans: Sequence[Span]) -> list[int | None]:
        rows = self._batch.fill(spans, n_vocab=self.vocab.size)
        status = int(lib.llama_decode(self._context, self._batch.struct))
        if status != 0:
            raise DecodeError(f"llama_decode failed with {status} on a batch of {self._batch.struct.n_tokens} tokens")
        return [
            None if span.sampling is None else sample(self._logits(row), span.sampling, span.drawn)
            for span, row in zip(spans, rows, strict=True)
        ]

    def forget(self, sequence: int, start: int = 0) -> None:
        lib.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def close(self) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def _warm_up(self) -> None:
        """A first small step: it touches every weight, and what this build cannot do on this machine dies here, while
        loading, rather than in somebody's answer.
        """
        token = max(int(lib.llama_vocab_bos(lib.llama_model_get_vocab(self._model))), 0)
        self.decode([Span(0, 0, [token] * min(_WARM_UP_TOKENS, self.n_batch))])
        self.forget(0)

    def _logits(self, row: int) -> npt.NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self.vocab.size,))


class _Batch:
    """A llama_batch allocated once and filled through numpy views of its arrays."""

    def __init__(self, capacity: int) -> None:
        self.struct = lib.llama_batch_init(capacity, 0, 1)
        self._capacity = capacity
        self._token = _view(self.struct.token, capacity)
        self._position = _view(self.struct.pos, capacity)
        self._output = _view(self.struct.logits, capacity)
        _view(self.struct.n_seq_id, capacity)[:] = 1

    def fill(self, spans: Sequence[Span], *, n_vocab: int) -> list[int]:
        """Lay the spans out one after another; returns the row of each one's last token."""
        total = sum(len(span.tokens) for span in spans)
        if not 0 < total <= self._capacity:
            raise DecodeError(f"a step of {total} tokens does not fit a batch of {self._capacity}")
        self._output[:total] = 0
        rows: list[int] = []
        at = 0
        for span in spans:
            end = at + len(span.tokens)
            self._token[at:end] = span.tokens
            self._position[at:end] = range(span.start, span.start + len(span.tokens))
            for index in range(at, end):
                self.struct.seq_id[index][0] = span.sequence
            if span.sampling is not None:
                self._output[end - 1] = 1
            rows.append(end - 1)
            at = end
        tokens = self._token[:total]
        if tokens.min() < 0 or tokens.max() >= n_vocab:
            raise DecodeError("a token id is outside the vocabulary")
        self.struct.n_tokens = total
        return rows


def _view(pointer: Any, size: int) -> npt.NDArray[Any]:
    return np.ctypeslib.as_array(pointer, shape=(size,))


def _load_model(path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.use_extra_bufts = options.repack

    def report(progress: float, _data: Any) -> bool:
        on_progress(progress)
        return True

    callback = lib.llama_progress_callback(report)
    params.progress_callback = callback
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        reason = "; ".join(library.log.errors) or "libllama gave no reason"
        raise ModelLoadFailed(f"cannot load {path.name}: {reason}")
    return model


def _new_context(model: Any, options: EngineOptions, *, n_ctx: int, n_batch: int) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = n_batch
    params.n_ubatch = min(options.n_ubatch, n_batch)
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = options.n_threads
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
    params.type_k = _CACHE_TYPES[options.cache_type_k]
    params.type_v = _CACHE_TYPES[options.cache_type_v]
    params.no_perf = True
    context = lib.llama_init_from_model(model, params)
    if not context:
        reason = "; ".join(library.log.errors) or "libllama gave no reason"
        raise ModelLoadFailed(f"cannot create a context of {n_ctx} tokens: {reason}")
    return context


def _description(model: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
